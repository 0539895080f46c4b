package remote

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Change tells that something in a drain watch has changed. Exactly one of the fields beside Cluster is set; none, when the watch has
// ended with its connection.
type Change struct {
	Cluster types.NamespacedName

	// Pod has appeared, changed, or gone (Deleted).
	Pod     *corev1.Pod
	Deleted bool

	// Budget has appeared, changed, or gone.
	Budget *policyv1.PodDisruptionBudget

	// Node names a Node whose Pods are all known from now on.
	Node *string

	// Surroundings: a Namespace's labels or the set of DaemonSets have changed, or all of them are known from now on.
	Surroundings bool

	// Volumes names a Node whose volumes somebody waits for: its VolumeAttachments, its Pods or what decides about these have
	// changed.
	Volumes *string
}

// Observation is a consistent enough view of what a drain looks at in one workload cluster: all of it comes from watches.
type Observation interface {
	// PodsOn returns the Pods of a Node. Not known until the Node's first list has arrived.
	PodsOn(node string) (pods []*corev1.Pod, known bool)

	// PodByUID finds a Pod among the watched Nodes.
	PodByUID(uid types.UID) (*corev1.Pod, bool)

	// Budgets returns all PodDisruptionBudgets. Not known until the first list has arrived.
	Budgets() (budgets []*policyv1.PodDisruptionBudget, known bool)

	// BudgetsServed is false where the API server has answered that it doesn't know PodDisruptionBudgets of policy/v1.
	BudgetsServed() bool

	// NamespaceLabels returns a Namespace's labels.
	NamespaceLabels(namespace string) (labels map[string]string, known bool)

	// DaemonSetExists says whether the DaemonSet is there.
	DaemonSetExists(namespace, name string, uid types.UID) (exists, known bool)

	// AttachmentsTo returns the VolumeAttachments of a Node. Not known unless somebody waits for volumes, see ObserveVolumes,
	// and until the first list has arrived.
	AttachmentsTo(node string) (attachments []*storagev1.VolumeAttachment, known bool)
}

// Subject is a Pod as drain rules look at it.
func Subject(o Observation, pod *corev1.Pod) rules.Pod {
	podType, typeKnown := rules.PodTypeOf(pod, o.DaemonSetExists)
	namespaceLabels, namespaceKnown := o.NamespaceLabels(pod.Namespace)
	return rules.Pod{
		Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels,
		NamespaceLabels: namespaceLabels, NamespaceKnown: namespaceKnown,
		Type: podType, TypeKnown: typeKnown, Finished: rules.Finished(pod),
	}
}

// PodOf finds the Pod of an Evacuation among the watched Nodes. A Pod that has the UID of its spec.podRef in another Namespace, or by
// another name, is not found: see evacuation.IsOf.
func PodOf(observation Observation, e *v1alpha1.Evacuation) (*corev1.Pod, bool) {
	pod, found := observation.PodByUID(types.UID(e.Spec.PodRef.UID))
	if !found || !evacuation.IsOf(e, pod) {
		return nil, false
	}
	return pod, true
}

// neededAnnotations of Pods, beside those that name evacuators.
var neededAnnotations = []string{corev1.MirrorPodAnnotationKey, corev1.PodDeletionCost, v1alpha1.DeletionCostAnnotation}

// trimPod drops what no decision looks at, so that a drain of many Pods stays small in memory.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	pod.ManagedFields = nil
	for key := range pod.Annotations {
		if !slices.Contains(neededAnnotations, key) && !strings.HasPrefix(key, v1alpha1.EvacuatorPriorityAnnotationPrefix) {
			delete(pod.Annotations, key)
		}
	}
	pod.Spec = corev1.PodSpec{
		NodeName:                      pod.Spec.NodeName,
		Priority:                      pod.Spec.Priority,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		Tolerations:                   pod.Spec.Tolerations,
		Volumes:                       claimedVolumes(pod.Spec.Volumes),
	}
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, Conditions: readyCondition(pod.Status.Conditions)}
	return pod, nil
}

func claimedVolumes(volumes []corev1.Volume) []corev1.Volume {
	var claimed []corev1.Volume
	for _, volume := range volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			claimed = append(claimed, volume)
		case volume.Ephemeral != nil: // its claim is named after the Pod and the volume; the template isn't needed
			claimed = append(claimed, corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		}
	}
	return claimed
}

func readyCondition(conditions []corev1.PodCondition) []corev1.PodCondition {
	for _, condition := range conditions {
		if condition.Type == corev1.PodReady {
			return []corev1.PodCondition{{Type: corev1.PodReady, Status: condition.Status}}
		}
	}
	return nil
}

// TrimNode drops from cached Nodes what no decision looks at: images, and what kubelets report of the machine.
func TrimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	node.ManagedFields = nil
	node.Status = corev1.NodeStatus{Conditions: node.Status.Conditions, VolumesAttached: node.Status.VolumesAttached}
	return node, nil
}

// evacuationAnnotations are those of Evacuations that decisions look at.
var evacuationAnnotations = []string{v1alpha1.EvacuationNodeAnnotation, v1alpha1.EvacuatorsPolicyAnnotation, v1alpha1.EvacuateAfterAnnotation}

// maxAnnotation is the length of the longest value that such an annotation has: the name of a Node.
const maxAnnotation = 253

// Trim drops from cached objects of workload clusters what no decision looks at. Evacuations are tenants': their labels and
// annotations may take megabytes.
func Trim(object any) (any, error) {
	e, ok := object.(*v1alpha1.Evacuation)
	if !ok {
		return ctrlcache.TransformStripManagedFields()(object)
	}
	e.ManagedFields, e.Labels = nil, nil
	maps.DeleteFunc(e.Annotations, func(key, value string) bool {
		return !slices.Contains(evacuationAnnotations, key) || len(value) > maxAnnotation
	})
	return e, nil
}
