package machinedrain

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// PolicyFor returns the policy that a Machine follows: the first by name, in the Machine's namespace, that selects its Cluster and the
// Machine. Without a policy, it returns nil and Cluster API drains the Machine.
func PolicyFor(machine *clusterv1.Machine, clusterLabels map[string]string, policies []v1alpha1.MachineDrainPolicy) *v1alpha1.MachineDrainPolicy {
	var first *v1alpha1.MachineDrainPolicy
	for i := range policies {
		policy := &policies[i]
		if policy.Namespace != machine.Namespace || !policy.DeletionTimestamp.IsZero() {
			continue
		}
		if !PolicySelectsCluster(policy, clusterLabels) || !selects(policy.Spec.MachineSelector, machine.Labels) {
			continue
		}
		if first == nil || policy.Name < first.Name {
			first = policy
		}
	}
	return first
}

// PolicySelectsCluster reports whether Machines of a Cluster with these labels may follow the policy.
func PolicySelectsCluster(policy *v1alpha1.MachineDrainPolicy, clusterLabels map[string]string) bool {
	return selects(policy.Spec.ClusterSelector, clusterLabels)
}

// selects reports whether a selector matches. An absent or empty selector matches everything. An invalid one matches nothing, because
// to opt Machines in by mistake is worse than not to opt them in.
func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

// Tally counts what follows a policy.
type Tally struct {
	Clusters, Machines int32
	// Draining are the Machines that are being drained, the oldest deletion first.
	Draining []*clusterv1.Machine
}

// TallyOf counts the Machines that follow a policy. policies are all policies of its namespace, because a Machine follows the first by
// name; clusters are the labels of the namespace's Clusters, by name.
func TallyOf(policy *v1alpha1.MachineDrainPolicy, policies []v1alpha1.MachineDrainPolicy, all []clusterv1.Machine, clusters map[string]map[string]string) Tally {
	tally, seen := Tally{}, sets.New[string]()
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
			tally.Draining = append(tally.Draining, machine)
		}
	}
	slices.SortFunc(tally.Draining, OldestRequestFirst)
	tally.Clusters = int32(seen.Len()) //nolint:gosec // bounded by the number of Clusters
	return tally
}

// maxPools is the maximum number of MachinePools that a condition names.
const maxPools = 5

// PoolsCondition returns the condition of a policy about MachinePools that have Nodes and no Machines, nil if no Cluster
// that it selects has one. clusters are the labels of the namespace's Clusters, by name.
func PoolsCondition(policy *v1alpha1.MachineDrainPolicy, pools []clusterv1.MachinePool, all []clusterv1.Machine, clusters map[string]map[string]string) *metav1.Condition {
	withMachines := sets.New[string]()
	for i := range all {
		withMachines.Insert(all[i].Labels[clusterv1.MachinePoolNameLabel])
	}
	var without []string
	for i := range pools {
		pool := &pools[i]
		labels, known := clusters[pool.Spec.ClusterName]
		if known && PolicySelectsCluster(policy, labels) && len(pool.Status.NodeRefs) > 0 && !withMachines.Has(format.MustFormatValue(pool.Name)) {
			without = append(without, pool.Name)
		}
	}
	if len(without) == 0 {
		return nil
	}
	slices.Sort(without)
	return &metav1.Condition{
		Type: v1alpha1.MachineDrainPolicyMachinePoolsManaged, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoMachines, ObservedGeneration: policy.Generation,
		Message: "The infrastructure provider creates no Machines for MachinePools: " + text.List(without, maxPools) + ". Their Nodes are not drained when the provider deletes them",
	}
}

const (
	// MaxWaits is the maximum number of blocked drains in the status of a policy.
	MaxWaits = 5
	// maxWaitLines is the maximum number of blockers of each, and maxWaitText the maximum length of their text, in characters.
	maxWaitLines = 3
	maxWaitText  = 1024
)

// NeedsBlockers reports whether WaitOf needs the blockers of a Machine's NodeMaintenance.
func NeedsBlockers(machine *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return condition != nil && (condition.Reason == v1alpha1.ReasonMachineDraining || condition.Reason == v1alpha1.ReasonCordonFailed || condition.Reason == v1alpha1.ReasonReconcileFailed)
}

// WaitOf returns what the drain of a Machine waits for: the blockers of its NodeMaintenance, or the condition of the Machine if the drain
// waits for something else. It returns nil if nothing blocks the drain. The progress of the drain is left out, because it changes often.
func WaitOf(machine *clusterv1.Machine, blockers []string) *v1alpha1.DrainWait {
	condition := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if condition == nil || condition.Status != metav1.ConditionFalse || RequestedAt(machine) == nil {
		return nil
	}
	message := condition.Message
	switch {
	case len(blockers) > 0:
		message = strings.Join(blockers[:min(len(blockers), maxWaitLines)], "\n")
	case condition.Reason == v1alpha1.ReasonMachineDraining || message == "":
		return nil
	}
	return &v1alpha1.DrainWait{
		Machine: machine.Name, Cluster: machine.Spec.ClusterName, Since: metav1.NewTime(*RequestedAt(machine)), Reason: condition.Reason,
		Message: text.Cut(message, maxWaitText),
	}
}
