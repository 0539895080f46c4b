package rollouts

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// ProgressTimeout is how long a rollout may go without progress before its Nodes are schedulable again.
const ProgressTimeout = 10 * time.Minute

// Rollout is what is looked at in a MachineDeployment.
type Rollout struct {
	// Paused: the MachineDeployment is. Deleting: it is, or its Cluster.
	Paused, Deleting bool
	// RollingUpdate: outdated Machines are replaced without anybody asking for each of them.
	RollingUpdate bool
	Machines      []Machine
}

// Machine is what is looked at in a Machine of a MachineDeployment.
type Machine struct {
	Name string
	// Policy is what its MachineDrainPolicy says about outdated Nodes; empty if it follows none.
	Policy v1alpha1.OutdatedNodesPolicy
	// Outdated: it is to be replaced. Available: it is ready to run Pods.
	Outdated, Available, Deleting bool
	// LastProgress is when something has last happened to it that brings the rollout further.
	LastProgress time.Time
}

// Decision has the stage of the NodeMaintenance of each Machine that is to have one ahead of its deletion, by name. All other
// Machines that aren't being deleted are to have none. Until, if not zero, is when to decide again if nothing happens.
type Decision struct {
	Stages map[string]v1alpha1.NodeMaintenanceStage
	Until  time.Time
}

// Decide says which Nodes are announced, and which are cordoned, ahead of their Machines' deletion.
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

// mayCordon says whether the rollout goes well enough to take its outdated Nodes from the scheduler, and until when, if nothing
// happens.
func (r Rollout) mayCordon(now time.Time) (may bool, until time.Time) {
	if !r.RollingUpdate {
		return false, time.Time{}
	}
	updated := false
	var last time.Time
	for _, m := range r.Machines {
		updated = updated || !m.Outdated && m.Available && !m.Deleting
		if m.LastProgress.After(last) {
			last = m.LastProgress
		}
	}
	until = last.Add(ProgressTimeout)
	return updated && now.Before(until), until
}
