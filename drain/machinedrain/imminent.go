package machinedrain

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

const (
	// newDeletion is how long after the deletion of a Machine the cordon of its Node is expected. The time of a deletion has whole seconds, so
	// evictions wait for one to two seconds.
	newDeletion = 2 * time.Second
	// unreportedDeletion is the same while the manager has not reported what keeps the drain from beginning: if many Machines are deleted
	// together, or the management cluster is busy, it cordons the last Node seconds after the first.
	unreportedDeletion = 10 * time.Second
	// reportInterval is the interval of decisions after newDeletion. No event of the workload cluster says that the manager has reported.
	reportInterval = time.Second
)

// ImminentCordon returns the Node of a Machine that was deleted a moment ago, and until when evictions wait for the cordon of this Node
// without another decision, if it is still schedulable: the replacement of an evicted Pod may be scheduled onto it, and would be evicted
// again. A rollout may have announced the maintenance long before. It returns none for a Machine in cordoned, for one that is paused, held
// or not drained, and none where the clocks disagree.
func ImminentCordon(m *clusterv1.Machine, cordoned sets.Set[types.NamespacedName], now time.Time) (node string, until time.Time) {
	waits := HasPauseAnnotation(m) || IsHeldByHooks(m)
	if m.DeletionTimestamp.IsZero() || !HasHook(m) || isExcluded(m, clusterv1.ExcludeNodeDrainingAnnotation) || waits ||
		!m.Status.NodeRef.IsDefined() || cordoned.Has(types.NamespacedName{Namespace: m.Namespace, Name: m.Name}) {
		return "", time.Time{}
	}
	switch until = m.DeletionTimestamp.Add(newDeletion); {
	case now.Before(m.DeletionTimestamp.Add(-newDeletion)):
		return "", time.Time{}
	case now.Before(until):
	case isUnreported(m) && now.Before(m.DeletionTimestamp.Add(unreportedDeletion)):
		until = now.Add(reportInterval)
	default:
		return "", time.Time{}
	}
	return m.Status.NodeRef.Name, until
}

// Cordoned returns the Machines of a Cluster whose NodeMaintenances have cordoned their Nodes, or leave them schedulable while the Machine
// waits for a turn. The watch of Nodes may lag behind.
func Cordoned(maintenances []v1alpha1.NodeMaintenance, cluster types.NamespacedName) sets.Set[types.NamespacedName] {
	cordoned := sets.New[types.NamespacedName]()
	for i := range maintenances {
		m := &maintenances[i]
		machine, serves := OwnerMachineOfAnyManager(m, cluster)
		if serves && (m.StaysSchedulable() || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned)) {
			cordoned.Insert(machine)
		}
	}
	return cordoned
}

// isUnreported reports whether the manager has not reported since the deletion of a Machine what keeps its drain from beginning.
func isUnreported(m *clusterv1.Machine) bool {
	reported := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return reported == nil || reported.ObservedGeneration < m.Generation ||
		reported.Reason == v1alpha1.ReasonMachineDraining || reported.Reason == v1alpha1.ReasonWaitingForTurn
}
