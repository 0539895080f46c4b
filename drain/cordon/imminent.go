package cordon

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

const (
	// imminence is how long evictions wait for the cordon of one NodeMaintenance, from its creation. Most cordons take a tenth of a
	// second; where hundreds of Nodes are cordoned at the same time, seconds.
	imminence = 10 * time.Second
	// patience is how long the eviction of one Pod waits for cordons in total, from the creation of its Evacuation. Without it,
	// a user who may create NodeMaintenances could recreate one every few seconds, and no Pod of the workload cluster would be evicted.
	patience = 30 * time.Second
)

// Imminent returns the Nodes that a new NodeMaintenance is about to cordon, as far as it names them, and until when evictions wait
// for that: the replacement of an evicted Pod may be scheduled onto such a Node, and would be evicted again. It returns none for a
// NodeMaintenance that has cordoned its Nodes, does not cordon, or is being deleted, and none for one that appears to be created in
// the future: the clock of a workload cluster may be wrong, and must not block evictions. CanCordon decides about each Node.
func Imminent(m *v1alpha1.NodeMaintenance, now time.Time) (nodes []string, until time.Time) {
	if !Holds(m) || !m.DeletionTimestamp.IsZero() || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned) ||
		!isWithin(imminence, m.CreationTimestamp.Time, now) {
		return nil, time.Time{}
	}
	nodes, _ = nodeselection.Names(m)
	return nodes, m.CreationTimestamp.Add(imminence)
}

// CanCordon reports whether a NodeMaintenance may still cordon a Node of a name that it selects: the Node is schedulable, is not
// being deleted, and is not another Node that has been created with the same name.
func CanCordon(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	return nodeselection.CouldSelect(m, node) && !node.Spec.Unschedulable && node.DeletionTimestamp.IsZero()
}

// Waits reports whether the eviction of a Pod still waits for imminent cordons, and until when at most. requested is when its
// Evacuation was created.
func Waits(requested, now time.Time) (until time.Time, waits bool) {
	return requested.Add(patience), isWithin(patience, requested, now)
}

// isWithin reports whether a period that starts at a time of the workload cluster's clock has not ended. That clock may be ahead a little.
func isWithin(period time.Duration, start, now time.Time) bool {
	age := now.Sub(start)
	return age >= -imminence && age < period
}
