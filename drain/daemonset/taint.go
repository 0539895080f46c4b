package daemonset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// taint keeps the Pods of DaemonSets away. NoSchedule: those that are there stay until each one's turn.
var taint = corev1.Taint{Key: v1alpha1.NoDaemonSetPodsTaint, Effect: corev1.TaintEffectNoSchedule}

// Tainted says whether the Node has our taint.
func Tainted(node *corev1.Node) bool { return slices.ContainsFunc(node.Spec.Taints, isOurs) }

// SetTaint puts our taint on the Node, or takes it off, and says whether it has changed anything. A write must carry the
// resourceVersion, since taints are a list that others write, too.
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

// isOurs compares what identifies a taint: key and effect.
func isOurs(t corev1.Taint) bool { return t.Key == taint.Key && t.Effect == taint.Effect }

// Tolerated says whether Pods with these tolerations run on a Node in spite of our taint. It is the scheduler's rule for a taint
// without a value. The DaemonSet controller goes by the template, which may differ from the Pod while a rollout is in
// flight; the Pods of the new template are then looked at in their turn.
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
