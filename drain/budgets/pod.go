package budgets

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// PodOf returns the properties of a Pod that budgets depend on.
func PodOf(pod *corev1.Pod) Pod {
	return Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
		Labels: pod.Labels, Ready: rules.Ready(pod), Phase: pod.Status.Phase, Terminating: pod.DeletionTimestamp != nil,
	}
}
