package machinedrain

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// newDeletion is how long after the deletion of a Machine its NodeMaintenance is expected. The time of a deletion has whole seconds, so
// evictions wait for one to two seconds.
const newDeletion = 2 * time.Second

// ImminentMaintenance returns the Node of a Machine that was deleted a moment ago and has no NodeMaintenance yet, and until when evictions
// wait for the cordon of this Node: the replacement of an evicted Pod may be scheduled onto it, and would be evicted again. It returns none
// for a Machine that is paused or held, or whose Node is not drained, and none where the clocks disagree.
func ImminentMaintenance(m *clusterv1.Machine, cluster types.NamespacedName, maintenances []v1alpha1.NodeMaintenance,
	now time.Time,
) (node string, until time.Time) {
	waits := HasPauseAnnotation(m) || IsHeldByHooks(m)
	if m.DeletionTimestamp.IsZero() || !HasHook(m) || isExcluded(m, clusterv1.ExcludeNodeDrainingAnnotation) || waits ||
		!m.Status.NodeRef.IsDefined() {
		return "", time.Time{}
	}
	until = m.DeletionTimestamp.Add(newDeletion)
	if now.Before(m.DeletionTimestamp.Add(-newDeletion)) || !now.Before(until) {
		return "", time.Time{}
	}
	serves := func(maintenance v1alpha1.NodeMaintenance) bool {
		owner, _ := OwnerMachineOfAnyManager(&maintenance, cluster)
		return owner == types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
	}
	if slices.ContainsFunc(maintenances, serves) {
		return "", time.Time{}
	}
	return m.Status.NodeRef.Name, until
}
