package rules

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// UnreachableGracePeriodSeconds is the grace period of Pods on an unreachable Node, where no kubelet waits for them to terminate. Cluster API uses
// the same.
const UnreachableGracePeriodSeconds int64 = 1

// Unreachable reports whether the condition Ready of a Node is Unknown: the node controller gets no heartbeats from its kubelet.
func Unreachable(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionUnknown
		}
	}
	return false
}

// Overdue reports whether the grace period of a Pod on an unreachable Node has ended. Such a Pod blocks nothing, since no kubelet confirms that it
// has terminated. overdueAt is the time at which the grace period ends.
func Overdue(pod *corev1.Pod, nodeUnreachable bool, now time.Time) (overdue bool, overdueAt time.Time) {
	if !nodeUnreachable || pod.DeletionTimestamp == nil {
		return false, time.Time{}
	}
	overdueAt = pod.DeletionTimestamp.Add(time.Duration(UnreachableGracePeriodSeconds) * time.Second)
	return !now.Before(overdueAt), overdueAt
}
