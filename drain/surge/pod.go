package surge

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// leavingCost is the lowest deletion cost that a Pod can have.
const leavingCost = "-2147483647"

// Controls reports whether the Deployment controls a Pod through set, the ReplicaSet that the Pod names, nil if it does not exist.
func Controls(d *appsv1.Deployment, set *appsv1.ReplicaSet, pod *corev1.Pod) bool {
	return d != nil && set != nil && metav1.IsControlledBy(pod, set) && metav1.IsControlledBy(set, d)
}

// Marked reports whether a Pod is marked to be deleted when its ReplicaSet is scaled down.
func Marked(pod *corev1.Pod) bool {
	_, ours := pod.Annotations[v1alpha1.DeletionCostAnnotation]
	return ours && pod.Annotations[corev1.PodDeletionCost] == leavingCost
}

// Mark makes a Pod the first one that its ReplicaSet deletes when it is scaled down. It records the previous cost.
func Mark(pod *corev1.Pod) {
	if Marked(pod) {
		return
	}
	pod.Annotations = labels.Merge(pod.Annotations, labels.Set{
		v1alpha1.DeletionCostAnnotation: pod.Annotations[corev1.PodDeletionCost], corev1.PodDeletionCost: leavingCost,
	})
}

// Unmark restores the deletion cost that a Pod had before Mark. It keeps a cost that another actor has set since.
func Unmark(pod *corev1.Pod) {
	before, ours := pod.Annotations[v1alpha1.DeletionCostAnnotation]
	if !ours {
		return
	}
	annotations := maps.Clone(pod.Annotations)
	delete(annotations, v1alpha1.DeletionCostAnnotation)
	switch {
	case annotations[corev1.PodDeletionCost] != leavingCost:
	case before == "":
		delete(annotations, corev1.PodDeletionCost)
	default:
		annotations[corev1.PodDeletionCost] = before
	}
	pod.Annotations = annotations
}

// Allows reports whether a policy allows a surge for a Pod: with OnRequest, only if the Pod requests it.
func Allows(policy v1alpha1.SurgePolicy, pod *corev1.Pod) bool {
	switch policy {
	case v1alpha1.SurgeIfSingleReplica, v1alpha1.SurgeAlways:
		return true
	case v1alpha1.SurgeOnRequest:
		return requested(pod)
	default:
		return false
	}
}

// requested reports whether a Pod has the annotation of KEP-4212 with which an application owner requests a surge.
func requested(pod *corev1.Pod) bool {
	wanted := fmt.Sprintf("%d/%s", v1alpha1.EvacuatorControllerPriority, v1alpha1.EvacuatorRoleController)
	return pod.Annotations[v1alpha1.EvacuatorPriorityAnnotationPrefix+v1alpha1.EvacuatorClassDeployment] == wanted
}

// PolicyFor returns the most permissive surge policy for a Pod among the maintenances that drain its Node: Always, IfSingleReplica
// or Never. OnRequest counts as Always for a Pod that requests a surge, and as Never for others.
func PolicyFor(pod *corev1.Pod, draining []*v1alpha1.NodeMaintenance) v1alpha1.SurgePolicy {
	policy := v1alpha1.SurgeNever
	for _, m := range asking(pod, draining) {
		if m.Spec.Evacuation.Surge != v1alpha1.SurgeIfSingleReplica {
			return v1alpha1.SurgeAlways
		}
		policy = v1alpha1.SurgeIfSingleReplica
	}
	return policy
}

// RestartsFor reports whether the Deployment of a Pod is restarted and not scaled: all maintenances that request a surge for the Pod say
// so.
func RestartsFor(pod *corev1.Pod, draining []*v1alpha1.NodeMaintenance) bool {
	all := asking(pod, draining)
	scales := func(m *v1alpha1.NodeMaintenance) bool {
		return m.Spec.Evacuation.SurgeMethod != v1alpha1.SurgeMethodRestart
	}
	return len(all) > 0 && !slices.ContainsFunc(all, scales)
}

// asking returns those of the maintenances that request a surge for a Pod.
func asking(pod *corev1.Pod, draining []*v1alpha1.NodeMaintenance) (all []*v1alpha1.NodeMaintenance) {
	for _, m := range draining {
		if Allows(m.Spec.Evacuation.Surge, pod) {
			all = append(all, m)
		}
	}
	return all
}

// concerns reports whether a maintenance selects a Node by name, or its status lists the Node: the first Evacuations may precede the first
// status.
func concerns(m *v1alpha1.NodeMaintenance, node string) bool {
	names, _ := nodeselection.Names(m)
	return slices.Contains(names, node) || nodeselection.HasNodeStatus(m, node)
}
