package daemonset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

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
