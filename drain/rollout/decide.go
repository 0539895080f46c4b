package rollout

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
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
	// Policy is rollout.outdatedNodes of the MachineDrainPolicy that the Machine follows, empty if it follows none.
	Policy v1alpha1.OutdatedNodesPolicy
	// Outdated means that the rollout replaces the Machine.
	Outdated bool
	// Available means that the Machine's Node can run Pods.
	Available bool
	Deleting  bool
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
