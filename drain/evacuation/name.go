package evacuation

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// namePrefixLength is how many characters of the Pod's name the name of its Evacuation contains. Together with the 36 characters
// of a UID, they are less than the 253 that a name may have.
const namePrefixLength = 150

// Name returns the only name that an Evacuation of the Pod may have, so that a Pod has at most one Evacuation.
func Name(podUID types.UID, podName string) string {
	prefix := podName
	// Characters, since the rule in the CRD counts characters. Names that the API server accepts have one byte per character.
	if runes := []rune(podName); len(runes) > namePrefixLength {
		prefix = string(runes[:namePrefixLength])
	}
	return string(podUID) + "-" + strings.TrimRight(prefix, "-.")
}

// New returns the Evacuation by which NodeMaintenances request the removal of the Pod. It is resolved already: evacuators is what
// Resolve returned for the Pod.
func New(pod *corev1.Pod, evacuators []v1alpha1.Evacuator, progressDeadlineSeconds int32) *v1alpha1.Evacuation {
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  pod.Namespace,
			Name:       Name(pod.UID, pod.Name),
			Finalizers: []string{v1alpha1.NodeMaintenanceInstigatorFinalizer},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef:                  v1alpha1.LocalPodReference{Name: pod.Name, UID: string(pod.UID)},
			ProgressDeadlineSeconds: progressDeadlineSeconds,
			Evacuators:              cloneEvacuators(evacuators),
		},
	}
	Adopt(e, pod)
	return e
}

// Adopt adds what every Evacuation has, also one that another actor created: the labels of the Pod, which override its own, and an
// ownerReference to the Pod. The ownerReference keeps tools that prune by label from deleting the Evacuation. It does not block the
// deletion of the Pod, and the Pod is not the controller of the Evacuation.
func Adopt(e *v1alpha1.Evacuation, pod *corev1.Pod) {
	if len(pod.Labels) > 0 {
		labels := maps.Clone(e.Labels)
		if labels == nil {
			labels = make(map[string]string, len(pod.Labels))
		}
		maps.Copy(labels, pod.Labels)
		e.Labels = labels
	}
	owned := slices.ContainsFunc(e.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == pod.UID })
	if !owned {
		e.OwnerReferences = append(slices.Clone(e.OwnerReferences),
			metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	}
}

func cloneEvacuators(evacuators []v1alpha1.Evacuator) []v1alpha1.Evacuator {
	if len(evacuators) == 0 {
		return nil
	}
	clone := make([]v1alpha1.Evacuator, len(evacuators))
	for i := range evacuators {
		evacuators[i].DeepCopyInto(&clone[i])
	}
	return clone
}
