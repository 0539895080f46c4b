package v1alpha1

// The condition that this provider sets on Machines, and its reasons.
const (
	// MachineNodeMaintenance is True when the drain of a deleted Machine's Node is done or not needed, False while it goes on.
	MachineNodeMaintenance = "NodeMaintenance"

	ReasonWaitingForWorkloadCluster = "WaitingForWorkloadCluster"
	ReasonWaitingForTurn            = "WaitingForTurn"
	ReasonMachineDraining           = "Draining"
	ReasonWaitingForVolumeDetach    = "WaitingForVolumeDetach"
	ReasonTimedOut                  = "TimedOut"
	ReasonSkipped                   = "Skipped"
	ReasonMachineDrained            = "Drained"
)
