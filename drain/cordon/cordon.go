// Package cordon decides how a NodeMaintenance cordons a Node, and how it restores it.
//
// The first NodeMaintenance that cordons a Node records the state of the Node on it. The last one that ends restores this state and removes
// the record. So a Node that a user had cordoned stays cordoned, and a Node that only NodeMaintenances cordoned becomes schedulable.
package cordon

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Recorded states of a Node: the values of v1alpha1.NodeOriginAnnotation.
const (
	Schedulable   = "schedulable"
	Unschedulable = "unschedulable"
)

// Apply makes the Node unschedulable, and records its state if that is not recorded yet. It returns whether it has changed the Node. The
// write must fail if the Node has changed in the meantime, so that the record is true.
func Apply(node *corev1.Node) (changed bool) {
	if _, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]; !recorded {
		if node.Annotations == nil {
			node.Annotations = map[string]string{}
		}
		node.Annotations[v1alpha1.NodeOriginAnnotation] = recordedOrigin(node)
		changed = true
	}
	if !node.Spec.Unschedulable {
		node.Spec.Unschedulable, changed = true, true
	}
	return changed
}

// Holds reports whether a NodeMaintenance keeps the Nodes that it selects cordoned. A NodeMaintenance that is being deleted does not,
// regardless of its stage: of two that are deleted together, one must uncordon. One that serves a Machine does, since it is recreated.
func Holds(m *v1alpha1.NodeMaintenance) bool {
	_, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	return (m.Spec.Stage == v1alpha1.StageCordon || m.Spec.Stage == v1alpha1.StageDrain) && (m.DeletionTimestamp.IsZero() || serves)
}

// RestoresUnconditionally reports whether a completing NodeMaintenance makes its Nodes schedulable, regardless of who cordoned
// them: one that a user moved from Idle to Complete, as KEP-4212 specifies ("Supported Stage Transitions"). A NodeMaintenance that serves a Machine
// never does. The manager completes it when a rollout no longer announces the Node, and a user may have cordoned the Node since.
func RestoresUnconditionally(m *v1alpha1.NodeMaintenance) bool {
	if _, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]; serves {
		return false
	}
	idle := false
	for _, stage := range m.Status.StageStatuses {
		idle = idle || stage.Name == v1alpha1.StageIdle
		if stage.Name != v1alpha1.StageIdle {
			return false
		}
	}
	return idle
}

// Restore restores the Node to its recorded state, and removes the record. A Node without a record is not changed.
func Restore(node *corev1.Node) (changed bool) {
	record, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]
	if !recorded {
		return false
	}
	delete(node.Annotations, v1alpha1.NodeOriginAnnotation)
	if record == Schedulable {
		node.Spec.Unschedulable = false
	}
	return true
}

// Uncordon makes a Node schedulable, see RestoresUnconditionally. A record takes precedence: the NodeMaintenance cordoned the Node, although
// its status does not show that yet.
func Uncordon(node *corev1.Node) (changed bool) {
	if restored := Restore(node); restored || !node.Spec.Unschedulable {
		return restored
	}
	node.Spec.Unschedulable = false
	return true
}

func recordedOrigin(node *corev1.Node) string {
	if node.Spec.Unschedulable {
		return Unschedulable
	}
	return Schedulable
}

// WasUncordoned reports whether another actor has made a cordoned Node schedulable: the Node has the record of its state.
func WasUncordoned(node *corev1.Node) bool {
	_, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]
	return recorded && !node.Spec.Unschedulable
}

// UncordonedBy returns the field manager, other than ours, that owns spec.unschedulable in the managedFields of a Node. It is empty if none
// does: a write that removes the field leaves no owner.
func UncordonedBy(managed []metav1.ManagedFieldsEntry, ours string) string {
	for _, entry := range managed {
		if entry.Manager != ours && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:unschedulable"`) {
			return entry.Manager
		}
	}
	return ""
}

// Excludes reports whether a NodeMaintenance excludes the Nodes that it selects from load balancers: in stage Drain, since the Pods of a Node
// that is only cordoned still serve.
func Excludes(m *v1alpha1.NodeMaintenance) bool {
	return m.Spec.ExcludeFromLoadBalancers && m.Spec.Stage == v1alpha1.StageDrain && Holds(m)
}

// Exclude labels the Node so that load balancers send it no traffic, and records that. It does not change a Node that another actor has
// labelled. It returns whether it has changed the Node. The write must fail if the Node has changed in the meantime.
func Exclude(node *corev1.Node) (changed bool) {
	if _, labelled := node.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		return false
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Labels[corev1.LabelNodeExcludeBalancers] = ""
	node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation] = "true"
	return true
}

// Recorded reports whether the Node has a record of NodeMaintenances: its state, or that they excluded it from load balancers.
func Recorded(node *corev1.Node) bool {
	_, found := node.Annotations[v1alpha1.NodeOriginAnnotation]
	_, excluded := node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation]
	return found || excluded
}

// Include removes the label that Exclude has set, and the record.
func Include(node *corev1.Node) (changed bool) {
	if _, recorded := node.Annotations[v1alpha1.ExcludedFromLoadBalancersAnnotation]; !recorded {
		return false
	}
	delete(node.Annotations, v1alpha1.ExcludedFromLoadBalancersAnnotation)
	delete(node.Labels, corev1.LabelNodeExcludeBalancers)
	return true
}
