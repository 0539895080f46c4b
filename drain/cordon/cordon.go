// Package cordon decides how a maintenance leaves its mark on a Node, and how it takes it back: uncordoned is only what a
// maintenance has cordoned.
//
// The first maintenance that cordons a Node records on it how it was found; the last one to end restores that and removes
// the record. So a Node that a human had cordoned stays cordoned, and one that only maintenances cordoned never does.
package cordon

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// How a Node was found; values of v1alpha1.NodeOriginAnnotation.
const (
	Schedulable   = "schedulable"
	Unschedulable = "unschedulable"
)

// Apply makes the Node unschedulable, and records how it was found where that isn't recorded yet. It says whether it has
// changed the Node; a write must carry the resourceVersion, since the record must be true.
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

// Holds says whether a maintenance keeps the Nodes that it selects cordoned. One that is being deleted doesn't: it completes,
// whatever its stage still says, and of two that are deleted together one must uncordon. But one that serves a Machine is only
// made again.
func Holds(m *v1alpha1.NodeMaintenance) bool {
	_, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	return (m.Spec.Stage == v1alpha1.StageCordon || m.Spec.Stage == v1alpha1.StageDrain) && (m.DeletionTimestamp.IsZero() || serves)
}

// RestoresUnconditionally reports whether a completing NodeMaintenance makes its Nodes schedulable, whoever cordoned them: one that
// a user moved from Idle to Complete, as KEP-4212 specifies ("Supported Stage Transitions"). A NodeMaintenance that serves a Machine
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

// Restore restores the Node to its recorded state, and removes the record. A Node without a record, or with an invalid one, is not
// changed, unless unconditionally is set (see RestoresUnconditionally). A record takes precedence: the NodeMaintenance cordoned the
// Node, although its status does not show that yet.
func Restore(node *corev1.Node, unconditionally bool) (changed bool) {
	record, recorded := node.Annotations[v1alpha1.NodeOriginAnnotation]
	if recorded {
		delete(node.Annotations, v1alpha1.NodeOriginAnnotation)
		changed = true
	}
	if node.Spec.Unschedulable && (record == Schedulable || unconditionally && !recorded) {
		node.Spec.Unschedulable, changed = false, true
	}
	return changed
}

func recordedOrigin(node *corev1.Node) string {
	if node.Spec.Unschedulable {
		return Unschedulable
	}
	return Schedulable
}
