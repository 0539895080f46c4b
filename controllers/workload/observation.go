package workload

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Change is an event of a drain watch or a connection.
type Change struct {
	Cluster types.NamespacedName
	Type    ChangeType
	Node    string                        // of PodChanged, PodDeleted, PodsListed, VolumesChanged, DrainConfirmed, DrainContinued and PodsWaiting
	Pod     *corev1.Pod                   // of PodChanged and PodDeleted
	Budget  *policyv1.PodDisruptionBudget // of BudgetChanged
}

// ChangeType is what has changed.
type ChangeType string

const (
	// PodChanged means that a Pod was created or changed.
	PodChanged ChangeType = "PodChanged"
	// PodDeleted means that a Pod was deleted.
	PodDeleted ChangeType = "PodDeleted"
	// PodsListed means that the first list of the Pods of a Node has arrived.
	PodsListed ChangeType = "PodsListed"
	// BudgetChanged means that a PodDisruptionBudget was created, changed or deleted.
	BudgetChanged ChangeType = "BudgetChanged"
	// AllPodsAffected means that the decisions about all Pods may change: the labels of a Namespace, the set of DaemonSets or the availability
	// of budgets have changed, or the watch has stopped and owners must call Observe again.
	AllPodsAffected ChangeType = "AllPodsAffected"
	// VolumesChanged means that VolumeAttachments of a Node, or Pods that use volumes there, have changed, and an owner waits for its volumes.
	VolumesChanged ChangeType = "VolumesChanged"
	// WatchesAdded means that each later change or deletion of a NodeMaintenance or an Evacuation causes an event. A previous one may not
	// have.
	WatchesAdded ChangeType = "WatchesAdded"
	// Resumed means that events of the workload cluster have not been processed, because of a pause for example: see Resume.
	Resumed ChangeType = "Resumed"
	// DrainConfirmed means that this process has found the NodeMaintenance of a Node to be drained, or its final eviction attempts to be made,
	// see ConfirmDrained and ConfirmAttempted.
	DrainConfirmed ChangeType = "DrainConfirmed"
	// DrainContinued means that the NodeMaintenance of a Machine and its Node is no longer suspended, see ContinueDrain.
	DrainContinued ChangeType = "DrainContinued"
	// PodsWaiting means that the evictor has found Pods of a Node waiting, see SetWaiting.
	PodsWaiting ChangeType = "PodsWaiting"
	// WatchEnded means that the watch has ended with its connection or its last owner.
	WatchEnded ChangeType = "WatchEnded"
	// ClusterDeleted means that the Cluster no longer exists, so that no event of its workload cluster follows.
	ClusterDeleted ChangeType = "ClusterDeleted"
)

// Observation is the state of one workload cluster that drains depend on. All of it comes from watches.
type Observation interface {
	planinput.Surroundings

	// PodsOn returns the Pods of a Node. known is false until the Node's first list has arrived.
	PodsOn(node string) (pods []*corev1.Pod, known bool)

	// PodByUID finds a Pod among the watched Nodes.
	PodByUID(uid types.UID) (*corev1.Pod, bool)

	// Budgets returns all PodDisruptionBudgets, parsed once. known is false until the first list has arrived.
	Budgets() (all []*budgets.Budget, known bool)

	// LossOf returns which PodDisruptionBudget a Pod has lost a moment ago: see budgets.Observed.
	LossOf(pod budgets.Pod) (loss budgets.Loss, lost bool)

	// BudgetsServed returns false if the API server has answered that it does not serve PodDisruptionBudgets of policy/v1.
	BudgetsServed() bool

	// AttachmentsTo returns the VolumeAttachments of a Node. known is false until the first list has arrived, and while no owner waits for
	// volumes, see ObserveVolumes.
	AttachmentsTo(node string) (attachments []*storagev1.VolumeAttachment, known bool)
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

// neededAnnotations are the annotations of Pods that decisions need, besides those that name evacuators.
var neededAnnotations = []string{corev1.MirrorPodAnnotationKey, corev1.PodDeletionCost, v1alpha1.DeletionCostAnnotation}

// maxPriority is how many characters are kept of an annotation that names an evacuator. A longer one is invalid, since a role has at most
// 63, and so is what is kept of it.
const maxPriority = 80

// trimming returns a transform function that trims objects of one type in place.
func trimming[T any](trim func(T)) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if typed, is := object.(T); is {
			trim(typed)
		}
		return object, nil
	}
}

// TrimPod drops the fields of cached Pods that no decision needs, to limit the memory of large drains.
var TrimPod = trimming(func(pod *corev1.Pod) {
	pod.ManagedFields = nil
	for key, value := range pod.Annotations {
		switch {
		case strings.HasPrefix(key, v1alpha1.EvacuatorPriorityAnnotationPrefix):
			pod.Annotations[key] = text.Cut(value, maxPriority)
		case !slices.Contains(neededAnnotations, key):
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
	ready := rules.ReadyCondition(pod)
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason}
	if ready.Type != "" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: ready.Type, Status: ready.Status}}
	}
})

func claimedVolumes(volumes []corev1.Volume) []corev1.Volume {
	var claimed []corev1.Volume
	for _, volume := range volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			claimed = append(claimed, volume)
		case volume.Ephemeral != nil: // its claim is named after the Pod and the volume, so the template is not needed
			claimed = append(claimed, corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		}
	}
	return claimed
}

// TrimNode drops the fields of cached Nodes that no decision needs, such as images and the reports of kubelets about the machine.
var TrimNode = trimming(func(node *corev1.Node) {
	node.ManagedFields = nil
	node.Status = corev1.NodeStatus{Conditions: node.Status.Conditions, VolumesAttached: node.Status.VolumesAttached}
})

// evacuationAnnotations are the annotations of Evacuations that decisions need.
var evacuationAnnotations = []string{
	v1alpha1.EvacuationNodeAnnotation, v1alpha1.EvacuatorsPolicyAnnotation, v1alpha1.EvacuateAfterAnnotation, v1alpha1.NodeMaintenanceInstigatorFinalizer,
}

// maxAnnotation is the maximum length of the value of such an annotation: that of the name of a Node.
const maxAnnotation = 253

// Trim drops the fields of cached objects of workload clusters that no decision needs. Tenants write Evacuations, and their labels and
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
