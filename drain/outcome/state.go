package outcome

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// state of a Pod as a replacement, the worst first.
type state int

const (
	gone state = iota // it terminates, or has finished
	pending
	notReady
	ready
)

func stateOf(pod *corev1.Pod) state {
	switch {
	case pod.DeletionTimestamp != nil || rules.Finished(pod):
		return gone
	case pod.Spec.NodeName == "":
		return pending
	case !rules.Ready(pod):
		return notReady
	default:
		return ready
	}
}

// why says why a Pod is not ready, with texts of its tenant.
func why(pod *corev1.Pod) string {
	return "Pod " + pod.Name + ": " + reason(pod)
}

func reason(pod *corev1.Pod) string {
	if stateOf(pod) == pending {
		at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message+c.Reason != ""
		})
		if at < 0 {
			return "it is not scheduled to a Node"
		}
		if condition := pod.Status.Conditions[at]; condition.Message != "" {
			return condition.Message
		}
		return pod.Status.Conditions[at].Reason
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" {
				return "container " + status.Name + " waits: " + waiting.Reason
			}
		}
	}
	return "it is not ready"
}
