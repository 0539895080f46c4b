package evacuation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/replacements"
)

// Pod is what is known about the Pod of an Evacuation.
type Pod struct {
	// Known is false until it has been observed whether the Pod exists.
	Known bool
	// Exists says that there is a Pod with the name and the UID of spec.podRef.
	Exists bool
	// Terminating: it has a deletionTimestamp.
	Terminating bool
	// Finished: it has succeeded or failed, nothing of it runs any more.
	Finished bool
	// Type decides whether it may be evicted.
	Type v1alpha1.PodType
	// Node that it runs on, and what recreates it, see replacements.ControllerOf.
	Node, Controller string
	// GracePeriod is the time that it may take to stop.
	GracePeriod time.Duration
}

// IsOf says whether an Evacuation refers to a Pod: the Pod has the Evacuation's namespace, and the name and the UID of its
// spec.podRef. Admission asks who writes an Evacuation about the Pod with that namespace and name, so no other Pod may be evacuated by
// it, whatever its UID.
func IsOf(e *v1alpha1.Evacuation, pod *corev1.Pod) bool {
	return pod.Namespace == e.Namespace && pod.Name == e.Spec.PodRef.Name && string(pod.UID) == e.Spec.PodRef.UID
}

// ObservedPod describes the Pod of an Evacuation. Nil, or a Pod that the Evacuation does not refer to, means that the Pod of the
// Evacuation does not exist.
func ObservedPod(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) Pod {
	if pod == nil || !IsOf(e, pod) {
		return Pod{Known: true}
	}
	return Pod{
		Known:       true,
		Exists:      true,
		Terminating: pod.DeletionTimestamp != nil,
		Finished:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Type:        podType,
		Node:        pod.Spec.NodeName,
		Controller:  replacements.ControllerOf(pod),
		GracePeriod: time.Duration(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second,
	}
}

func (p Pod) gone() bool { return p.Known && (!p.Exists || p.Finished) }

func (p Pod) evictable() bool {
	return p.Type != v1alpha1.PodTypeDaemonSet && p.Type != v1alpha1.PodTypeStatic
}
