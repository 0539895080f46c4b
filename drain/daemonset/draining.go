package daemonset

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// Draining is a maintenance in stage Drain, with the drain targets for Pods of DaemonSets that it has published for a Node.
type Draining struct {
	Maintenance *v1alpha1.NodeMaintenance
	Targets     []v1alpha1.DrainTarget
	// Suspended means that no Pod is deleted for it: it is suspended or being deleted, or no longer selects the Node.
	Suspended bool
}

// On returns the maintenances in stage Drain that have a status for the Node. It omits those that were created for another Node
// of the same name. suspended reports whether nothing is done for a maintenance, see machinedrain.IsSuspended; nil: none is suspended.
func On(node *corev1.Node, maintenances []v1alpha1.NodeMaintenance, suspended func(*v1alpha1.NodeMaintenance) bool) []Draining {
	var draining []Draining
	for i := range maintenances {
		m := &maintenances[i]
		if uid := m.Annotations[v1alpha1.NodeUIDAnnotation]; m.Spec.Stage != v1alpha1.StageDrain || uid != "" && uid != string(node.UID) {
			continue
		}
		for _, status := range m.Status.NodeStatuses {
			if status.NodeRef.Name == node.Name {
				draining = append(draining, Draining{
					Maintenance: m, Targets: plan.OfType(v1alpha1.PodTypeDaemonSet, plan.Published(&m.Status, status)),
					Suspended: !m.Drains() || !nodeselection.Selects(m, node) || suspended != nil && suspended(m),
				})
			}
		}
	}
	return draining
}

// TaintWanted reports whether a Node needs the taint: the drain of at least one maintenance has reached the DaemonSet Pods of the
// Node. Drain targets never move backward, so the Node keeps the taint until the last such maintenance leaves stage Drain, is
// deleted, or no longer selects the Node.
func TaintWanted(draining []Draining) bool {
	return slices.ContainsFunc(draining, func(d Draining) bool { return len(d.Targets) > 0 })
}

// Affected returns the names of the Nodes whose DaemonSet Pods a change of a maintenance may affect. before is nil for a new
// maintenance, and after for a deleted one. Most changes of maintenances do not concern DaemonSets.
func Affected(before, after *v1alpha1.NodeMaintenance) []string {
	was, is := plan.PublishedByNode(v1alpha1.PodTypeDaemonSet, before), plan.PublishedByNode(v1alpha1.PodTypeDaemonSet, after)
	rulesChanged := before != nil && after != nil && evacuation.TermsChanged(before, after)
	affected := map[string]bool{}
	for node, rows := range was {
		if rulesChanged || !apiequality.Semantic.DeepEqual(rows, is[node]) {
			affected[node] = true
		}
	}
	for node := range is {
		if _, known := was[node]; !known {
			affected[node] = true
		}
	}
	return slices.Sorted(maps.Keys(affected))
}

// taint prevents DaemonSets from creating Pods on the Node. Its effect is NoSchedule, so that the existing Pods stay until the
// evacuator deletes them.
var taint = corev1.Taint{Key: v1alpha1.NoDaemonSetPodsTaint, Effect: corev1.TaintEffectNoSchedule}

// Tainted reports whether the Node has the taint.
func Tainted(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, isOurs) }

// SetTaint adds the taint to the Node or removes it, and returns whether the Node has changed. The write must contain the
// resourceVersion, since other clients write the list of taints, too.
func SetTaint(node *corev1.Node, wanted bool) (changed bool) {
	switch tainted := Tainted(node); {
	case wanted == tainted:
		return false
	case wanted:
		node.Spec.Taints = append(slices.Clone(node.Spec.Taints), taint)
	default:
		node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurs)
	}
	return true
}

// isOurs compares key and effect, which identify a taint.
func isOurs(t corev1.Taint) bool { return t.Key == taint.Key && t.Effect == taint.Effect }

// Tolerated reports whether the tolerations match the taint, by the scheduler's rule for a taint without a value. The DaemonSet
// controller uses the tolerations of the template, which may differ from those of the Pod during a rollout. A Pod that is created
// from the new template gets its own decision.
func Tolerated(tolerations []corev1.Toleration) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		switch {
		case t.Key != "" && t.Key != taint.Key, t.Effect != "" && t.Effect != taint.Effect:
			return false
		case t.Operator == corev1.TolerationOpExists:
			return true
		default: // of the other operators, only Equal can match a taint without a value
			return (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Key != "" && t.Value == ""
		}
	})
}
