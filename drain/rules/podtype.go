package rules

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// PodTypeOf returns the type of a Pod (R22).
//
// daemonSetExists returns whether the DaemonSet with this UID exists, and whether that is known. If it is not, the type is not known: it is
// DaemonSet or, for a Pod whose DaemonSet was deleted, Default (M8).
//
// The DaemonSet is identified by its UID, since a new one may have the same name, and by its API group, since other projects have kinds named
// DaemonSet.
func PodTypeOf(pod *corev1.Pod, daemonSetExists func(namespace, name string, uid types.UID) (exists, known bool)) (podType v1alpha1.PodType, known bool) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return v1alpha1.PodTypeStatic, true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !isDaemonSet(owner) {
		return v1alpha1.PodTypeDefault, true
	}
	exists, known := daemonSetExists(pod.Namespace, owner.Name, owner.UID)
	switch {
	case !known:
		return v1alpha1.PodTypeDaemonSet, false
	case !exists:
		return v1alpha1.PodTypeDefault, true
	default:
		return v1alpha1.PodTypeDaemonSet, true
	}
}

func isDaemonSet(owner *metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == appsv1.GroupName && owner.Kind == "DaemonSet"
}

// Finished reports whether the Pod has succeeded or failed. Such a Pod blocks nothing (M8), and behavior WaitCompleted waits for it (M5). Cluster
// API does not check it (https://github.com/kubernetes-sigs/cluster-api/issues/12920).
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Ready reports whether a Pod is ready, as PodDisruptionBudgets and Deployments count it.
func Ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
