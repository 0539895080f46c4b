package rules

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// PodTypeOf says what ties a pod to its Node (R22).
//
// The caller tells whether the DaemonSet with this UID exists, or that it doesn't know. In the latter case the type is not
// known: it is DaemonSet or, for an orphan of a DaemonSet that is gone, Default (M8). It is never Static then, since the
// mark of a mirror pod is on the pod itself.
//
// The DaemonSet is identified by UID, since a new one may bear the name of the old. Its API group counts too: other
// projects have kinds of the name DaemonSet, and the rules for DaemonSets are not made for them.
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

// Finished says that all containers of the pod have ended for good. Such a pod holds nothing back (M8), and it is what
// behavior WaitCompleted waits for (M5; cluster-api never looks, https://github.com/kubernetes-sigs/cluster-api/issues/12920).
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
