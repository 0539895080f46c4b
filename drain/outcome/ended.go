package outcome

import (
	"cmp"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Ended is a drain of a deleted Machine in the status of a MachineDrainPolicy, with the namespace of both.
type Ended struct {
	Namespace string
	v1alpha1.RecentDrain
}

// EndedOf returns the drains in the status of policies, starting with the one that ended last.
func EndedOf(policies []v1alpha1.MachineDrainPolicy) []Ended {
	var all []Ended
	for i := range policies {
		for _, drain := range policies[i].Status.RecentDrains {
			all = append(all, Ended{policies[i].Namespace, drain})
		}
	}
	slices.SortStableFunc(all, func(a, b Ended) int {
		return cmp.Or(b.EndTime.Compare(a.EndTime.Time), cmp.Compare(a.MachineName(), b.MachineName()))
	})
	return all
}

// ClusterName returns "namespace/name" of the Cluster.
func (e *Ended) ClusterName() string { return e.Namespace + "/" + e.Cluster }

// MachineName returns "namespace/name" of the Machine.
func (e *Ended) MachineName() string { return e.Namespace + "/" + e.Machine }
