package rollout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// ProgressTimeout is how long a rollout keeps its outdated Nodes cordoned without making progress.
const ProgressTimeout = 10 * time.Minute

// Rollout is a MachineDeployment with its Machines, reduced to what decides.
type Rollout struct {
	// Paused means that the MachineDeployment is paused.
	Paused bool
	// Deleting means that the MachineDeployment or its Cluster is being deleted.
	Deleting bool
	// RollingUpdate means that the strategy replaces outdated Machines automatically.
	RollingUpdate bool
	Machines      []Machine
}

// Machine is a Machine of a MachineDeployment, reduced to what decides.
type Machine struct {
	Name string
	// MachineSet distinguishes the MachineSet of the Machine from others of its MachineDeployment. It is empty if the Machine moves from one
	// to another, because it is updated in place.
	MachineSet string
	// Policy is rollout.outdatedNodes of the MachineDrainPolicy that the Machine follows, empty if it follows none.
	Policy v1alpha1.OutdatedNodesPolicy
	// Outdated means that the rollout replaces the Machine.
	Outdated bool
	// Available means that the Machine's Node can run Pods.
	Available bool
	Deleting  bool
	// Paused means that Cluster API does not update the conditions of the Machine, which may be those of an earlier rollout.
	Paused bool
	// LastProgress is the last time at which a change of the Machine was progress of the rollout.
	LastProgress time.Time
}

// Decision lists the NodeMaintenances that Machines need before they are deleted.
type Decision struct {
	// Stages are the stages of these NodeMaintenances by the names of the Machines. The other Machines that are not being deleted need no
	// NodeMaintenance.
	Stages map[string]v1alpha1.NodeMaintenanceStage
	// Until is when the decision expires if nothing changes before. Zero means never.
	Until time.Time
}

// Decide returns which Nodes are announced, and which are cordoned, before their Machines are deleted.
func Decide(r Rollout, now time.Time) Decision {
	d := Decision{Stages: map[string]v1alpha1.NodeMaintenanceStage{}}
	if r.Paused || r.Deleting {
		return d
	}
	cordon, until := r.mayCordon(now)
	for _, m := range r.Machines {
		if !m.Outdated || m.Deleting {
			continue
		}
		switch {
		case m.Policy == v1alpha1.OutdatedNodesCordon && cordon:
			d.Stages[m.Name], d.Until = v1alpha1.StageCordon, until
		case m.Policy == v1alpha1.OutdatedNodesCordon, m.Policy == v1alpha1.OutdatedNodesAnnounce:
			d.Stages[m.Name] = v1alpha1.StageIdle
		}
	}
	return d
}

// mayCordon reports whether the rollout makes enough progress to cordon its outdated Nodes, and until when if nothing changes.
func (r Rollout) mayCordon(now time.Time) (may bool, until time.Time) {
	if !r.RollingUpdate {
		return false, time.Time{}
	}
	updated, outdated := false, r.outdatedSets()
	var last time.Time
	for _, m := range r.Machines {
		updated = updated || !m.Outdated && !m.Paused && !outdated.Has(m.MachineSet) && m.Available && !m.Deleting
		if m.LastProgress.After(last) {
			last = m.LastProgress
		}
	}
	until = last.Add(ProgressTimeout)
	return updated && now.Before(until), until
}

// outdatedSets returns the MachineSets with an outdated Machine. All of their Machines are outdated: Cluster API says so of one after the
// other. A paused one does not count: after a rollback, it may still be said to be outdated.
func (r Rollout) outdatedSets() sets.Set[string] {
	all := sets.New[string]()
	for _, m := range r.Machines {
		if m.Outdated && !m.Paused && m.MachineSet != "" {
			all.Insert(m.MachineSet)
		}
	}
	return all
}

// Observe reduces Cluster API's objects to a Rollout. policyOf returns the policy that a Machine follows, nil if it follows none.
func Observe(cluster *clusterv1.Cluster, deployment *clusterv1.MachineDeployment, machines []clusterv1.Machine,
	policyOf func(*clusterv1.Machine) *v1alpha1.MachineDrainPolicy,
) Rollout {
	strategy := deployment.Spec.Rollout.Strategy.Type
	r := Rollout{
		Paused:        machinedrain.HasPauseAnnotation(deployment) || ptr.Deref(deployment.Spec.Paused, false),
		Deleting:      !cluster.DeletionTimestamp.IsZero() || !deployment.DeletionTimestamp.IsZero(),
		RollingUpdate: strategy == "" || strategy == clusterv1.RollingUpdateMachineDeploymentStrategyType,
	}
	for i := range machines {
		r.Machines = append(r.Machines, machineOf(&machines[i], outdatedNodes(&machines[i], policyOf(&machines[i]))))
	}
	return r
}

// outdatedNodes returns rollout.outdatedNodes of a Machine's policy. It is empty for a Machine without a Node, which cannot be announced.
func outdatedNodes(machine *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) v1alpha1.OutdatedNodesPolicy {
	switch {
	case policy == nil || !machine.Status.NodeRef.IsDefined():
		return ""
	case policy.Spec.Rollout.OutdatedNodes == "":
		return v1alpha1.OutdatedNodesAnnounce
	default:
		return policy.Spec.Rollout.OutdatedNodes
	}
}

// machineOf reduces a Machine. Cluster API's condition UpToDate says whether the Machine is outdated, because it takes rolloutAfter and
// in-place updates into account. A rollout makes progress when a Machine is created, becomes available, becomes outdated or is deleted.
func machineOf(machine *clusterv1.Machine, policy v1alpha1.OutdatedNodesPolicy) Machine {
	upToDate := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineUpToDateCondition)
	available := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineAvailableCondition)
	m := Machine{
		Name: machine.Name, Policy: policy,
		Outdated:     upToDate != nil && upToDate.Status == metav1.ConditionFalse && upToDate.Reason == clusterv1.MachineNotUpToDateReason,
		Available:    available != nil && available.Status == metav1.ConditionTrue,
		Deleting:     !machine.DeletionTimestamp.IsZero(),
		Paused:       machinedrain.HasPauseAnnotation(machine),
		LastProgress: machine.CreationTimestamp.Time,
	}
	if !machinedrain.IsUpdatedInPlace(machine) {
		m.MachineSet = machine.Labels[clusterv1.MachineDeploymentUniqueLabel]
	}
	if m.Deleting {
		m.LastProgress = latest(m.LastProgress, machine.DeletionTimestamp.Time)
	}
	if upToDate != nil {
		m.LastProgress = latest(m.LastProgress, upToDate.LastTransitionTime.Time)
	}
	if m.Available && !m.Outdated {
		m.LastProgress = latest(m.LastProgress, available.LastTransitionTime.Time)
	}
	return m
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
