package machinedrain

import (
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Tally is what a policy has to do with at present.
type Tally struct {
	Clusters, Machines, ActiveDrains int32
	LongestWaits                     []v1alpha1.DrainWait
}

// TallyOf counts the Machines that follow a policy. policies are all of its namespace, since the first by name that selects a
// Machine has it; clusters are the labels of the namespace's Clusters, by name.
func TallyOf(policy *v1alpha1.MachineDrainPolicy, policies []v1alpha1.MachineDrainPolicy, all []clusterv1.Machine, clusters map[string]map[string]string) Tally {
	tally, seen := Tally{}, sets.New[string]()
	var draining []*clusterv1.Machine
	for i := range all {
		machine := &all[i]
		labels, known := clusters[machine.Spec.ClusterName]
		if !known {
			continue
		}
		if follows := PolicyFor(machine, labels, policies); follows == nil || follows.Name != policy.Name {
			continue
		}
		seen.Insert(machine.Spec.ClusterName)
		tally.Machines++
		if IsDraining(machine) {
			tally.ActiveDrains++
			draining = append(draining, machine)
		}
	}
	tally.LongestWaits = longestWaits(draining)
	tally.Clusters = int32(seen.Len()) //nolint:gosec // bounded by the number of Clusters
	return tally
}
