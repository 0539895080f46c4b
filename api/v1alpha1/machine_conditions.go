package v1alpha1

// The condition that this provider sets on Machines, and its reasons.
const (
	// MachineNodeMaintenance is True when the drain of a deleted Machine's Node is done or not needed, False while it goes on. On a
	// Machine that isn't being deleted, it says how far the stage has come that its annotation asks for.
	MachineNodeMaintenance = "NodeMaintenance"

	ReasonWaitingForWorkloadCluster = "WaitingForWorkloadCluster"
	ReasonWaitingForTurn            = "WaitingForTurn"
	ReasonMachineDraining           = "Draining"
	// ReasonMaintenanceNameTaken: all names that the NodeMaintenance of the Node may have are taken by NodeMaintenances that the manager
	// has not written for this Machine and Node.
	ReasonMaintenanceNameTaken   = "NodeMaintenanceNameTaken"
	ReasonWaitingForVolumeDetach = "WaitingForVolumeDetach"
	ReasonTimedOut               = "TimedOut"
	ReasonSkipped                = "Skipped"
	ReasonMachineDrained         = "Drained"
	// ReasonReconcileFailed: a step of the drain has failed for 10 s or longer. The message has the error and what to do about it.
	// Where the Node cannot be cordoned, the reason is ReasonCordonFailed.
	ReasonReconcileFailed = "ReconcileFailed"

	// On Machines that aren't being deleted: the annotation's stage is reached, is on its way, or can't be.
	ReasonMachineAnnounced  = "Announced"
	ReasonMachineCordoned   = "Cordoned"
	ReasonMachineCordoning  = "Cordoning"
	ReasonMachineCompleting = "Completing"
	ReasonMachineCompleted  = "Completed"
	ReasonInvalidStage      = "InvalidStage"
	ReasonNotManaged        = "NotManaged"
)
