package shutdown

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

const (
	// NamePrefix, followed by the name of the Node, is the name of the NodeMaintenance. The agent's admission policy requires it.
	NamePrefix = "shutdown-"
	reason     = "node shutdown"
)

// Maintenance returns the NodeMaintenance of a shutdown. It evacuates all Pods of the Node except for the agent. It records the UID of the
// Node: a replacement of its Machine may have the same name.
func Maintenance(node *corev1.Node, c Config) *v1alpha1.NodeMaintenance {
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
		Name: NamePrefix + node.Name,
		Annotations: map[string]string{
			v1alpha1.ShutdownBootAnnotation: node.Status.NodeInfo.BootID,
			v1alpha1.NodeUIDAnnotation:      string(node.UID),
		},
	}}
	m.Spec = v1alpha1.NodeMaintenanceSpec{
		NodeSelector: v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
			MatchFields: []v1alpha1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name}}},
		}}},
		Stage:                    v1alpha1.StageDrain,
		Reason:                   reason,
		DrainPlan:                drainPlan(c),
		DrainRules:               []v1alpha1.DrainRule{rules.SkipNodeAgent()},
		ExcludeFromLoadBalancers: true,
	}
	return m
}

// drainPlan returns a drain plan with an entry for each type of Pod and phase of the configuration.
func drainPlan(c Config) []v1alpha1.DrainPlanEntry {
	phases := c.Phases()
	var entries []v1alpha1.DrainPlanEntry
	for _, podType := range []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic} {
		for i := range phases {
			upTo := int32(math.MaxInt32)
			if i+1 < len(phases) {
				upTo = phases[i+1].From - 1
			}
			entries = append(entries, v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: upTo})
		}
	}
	return slices.Clip(entries)
}

// Completes reports whether the agent completes a NodeMaintenance of an earlier shutdown: completeOnBoot is set, and the node has booted
// since.
func Completes(m *v1alpha1.NodeMaintenance, bootID string, c Config) bool {
	before := m.Annotations[v1alpha1.ShutdownBootAnnotation]
	booted := before != "" && before != bootID
	return c.CompleteOnBoot && booted && m.Spec.Stage != v1alpha1.StageComplete && m.DeletionTimestamp == nil
}

// IsOfAnother reports whether a NodeMaintenance is of the shutdown of an earlier Node with the name of this one.
func IsOfAnother(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	return node != nil && !nodeselection.CouldSelect(m, node)
}

// Progress returns the progress of a NodeMaintenance: acting if its controller has begun the drain, drained if the drain is complete.
func Progress(m *v1alpha1.NodeMaintenance) (acting, drained bool) {
	acting = m.StageStart(v1alpha1.StageDrain) != nil
	for _, condition := range m.Status.Conditions {
		if condition.Type == v1alpha1.NodeMaintenanceDrained && condition.Status == metav1.ConditionTrue && condition.ObservedGeneration == m.Generation {
			drained = acting
		}
	}
	return acting, drained
}
