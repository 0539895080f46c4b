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
		node.Annotations[v1alpha1.NodeOriginAnnotation] = found(node)
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

// Restore leaves the Node as it was found, and removes the record. A Node without a record, or with one that nobody can
// read, is left as it is. unconditionally is for a maintenance that goes from Idle to Complete: it makes Nodes schedulable
// whoever cordoned them, as KEP-4212 has it. A record counts more: it tells of a maintenance that was further than its status
// says.
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

func found(node *corev1.Node) string {
	if node.Spec.Unschedulable {
		return Unschedulable
	}
	return Schedulable
}
