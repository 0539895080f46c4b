package rules

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// UnreachableGracePeriodSeconds is what Pods on an unreachable Node get to terminate: no kubelet is there to let them take
// their own time. Cluster API gives them the same.
const UnreachableGracePeriodSeconds int64 = 1

// Unreachable says whether the node controller has lost the Node's kubelet.
func Unreachable(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionUnknown
		}
	}
	return false
}

// Overdue says whether a Pod should have been gone by now, and holds nothing back: its Node is unreachable, so nobody
// confirms its end. Where it isn't yet, overdueAt says when it will be.
func Overdue(pod *corev1.Pod, nodeUnreachable bool, now time.Time) (overdue bool, overdueAt time.Time) {
	if !nodeUnreachable || pod.DeletionTimestamp == nil {
		return false, time.Time{}
	}
	overdueAt = pod.DeletionTimestamp.Add(time.Duration(UnreachableGracePeriodSeconds) * time.Second)
	return !now.Before(overdueAt), overdueAt
}
