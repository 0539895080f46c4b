package machinedrain

import (
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// clusterctl move makes the objects of a Cluster anew in another management cluster. What it doesn't carry over is that a Machine
// was being deleted (https://github.com/kubernetes-sigs/cluster-api/issues/3215): there the Machine runs. So what its deletion
// has left behind is taken back, and comes again with the next deletion.

// OrphanedByMove says whether a NodeMaintenance serves a deletion of this Machine, or a rollout, that was begun in another management
// cluster, and that nobody goes on with here. What the Machine's annotation asks for is moved along with it.
func OrphanedByMove(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine, managementCluster string) bool {
	return machine.DeletionTimestamp.IsZero() &&
		m.Spec.Stage != v1alpha1.StageComplete &&
		m.Annotations[v1alpha1.RequestedForAnnotation] != v1alpha1.RequestedForStage &&
		m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] != managementCluster &&
		m.Annotations[v1alpha1.OwnerMachineAnnotation] == types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}.String() &&
		m.Annotations[v1alpha1.OwnerClusterAnnotation] == types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}.String()
}

// RevertMoved has a NodeMaintenance leave the Node as it was found.
func RevertMoved(m *v1alpha1.NodeMaintenance, managementCluster string) {
	adopt(m, managementCluster)
	m.Spec.Stage = v1alpha1.StageComplete
}

// ClearReleaseAnnotations takes the annotations that a drain and its release have set off a Machine that isn't being deleted.
func ClearReleaseAnnotations(machine *clusterv1.Machine) (changed bool) {
	for _, annotation := range []string{clusterv1.ExcludeNodeDrainingAnnotation, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation} {
		if machine.Annotations[annotation] == v1alpha1.HookOwner {
			delete(machine.Annotations, annotation)
			changed = true
		}
	}
	for _, annotation := range clockNotes {
		if _, noted := machine.Annotations[annotation]; noted {
			delete(machine.Annotations, annotation)
			changed = true
		}
	}
	return changed
}

// adopt makes a NodeMaintenance that of this management cluster.
func adopt(m *v1alpha1.NodeMaintenance, managementCluster string) (changed bool) {
	if m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] == managementCluster {
		return false
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = managementCluster
	return true
}
