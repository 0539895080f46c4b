package v1alpha1

// Condition types of Machines, and their reasons.
const (
	// MachineNodeMaintenance is False while the Node of a deleted Machine is being drained, and True when the drain is finished or not
	// needed. On a Machine that is not being deleted, it reports the progress of the stage that MachineStageAnnotation or an in-place
	// update requests.
	MachineNodeMaintenance = "NodeMaintenance"

	// ReasonWaitingForWorkloadCluster means that the manager has no connection to the workload cluster.
	ReasonWaitingForWorkloadCluster = "WaitingForWorkloadCluster"
	// ReasonCRDNotServed means that the workload cluster does not serve a CRD that the manager installs, or refuses the bundle. The message
	// says which and why.
	ReasonCRDNotServed = "CRDNotServed"
	// ReasonPolicyNotDecodable means that the manager cannot decode a MachineDrainPolicy that may select the Machine. The message names it.
	ReasonPolicyNotDecodable = "PolicyNotDecodable"
	// ReasonWaitingForPreDrainHook means that pre-drain hooks of other owners hold the drain. The message names the hooks and their owners.
	ReasonWaitingForPreDrainHook = "WaitingForPreDrainHook"
	// ReasonWaitingForTurn means that as many other Nodes of the Cluster are being drained as maxParallelDrains allows, or Nodes in as many
	// domains as maxParallelDrainsPerTopology allows.
	ReasonWaitingForTurn = "WaitingForTurn"
	// ReasonMachineDraining means that the Node is being drained. The message says what the drain waits for.
	ReasonMachineDraining = "Draining"
	// ReasonNodeMaintenanceNameTaken means that other NodeMaintenances, which do not serve this Machine and Node, have all names that the
	// NodeMaintenance of this Node can have.
	ReasonNodeMaintenanceNameTaken = "NodeMaintenanceNameTaken"
	// ReasonWaitingForVolumeDetach means that the Node is drained and has volumes that must be detached.
	ReasonWaitingForVolumeDetach = "WaitingForVolumeDetach"
	// ReasonTimedOut means that the drain timeout, or the timeout for volumes, was exceeded.
	ReasonTimedOut = "TimedOut"
	// ReasonSkipped means that the Node is not drained. The message says why.
	ReasonSkipped = "Skipped"
	// ReasonMachineDrained means that the Node is drained.
	ReasonMachineDrained = "Drained"
	// ReasonHookRemoved means that another actor removed the hook during the drain. Cluster API drains the Node.
	ReasonHookRemoved = "HookRemoved"
	// ReasonHandedOver means that the label cluster.x-k8s.io/watch-filter of the Machine was changed, and that a manager with another
	// --watch-filter must drain the Node. The message names it.
	ReasonHandedOver = "HandedOver"
	// ReasonReconcileFailed means that a step of the drain has failed for 10 s or longer. The message has the error and what to do about
	// it. If the Node cannot be cordoned, the reason is CordonFailed; if a MachineDrainRule is invalid, it is InvalidDrainRule.
	ReasonReconcileFailed = "ReconcileFailed"

	// ReasonMachineAnnounced means that a NodeMaintenance announces the maintenance of the Node, as the stage annotation requests.
	ReasonMachineAnnounced = "Announced"
	// ReasonMachineCordoned means that the Node is cordoned, as the stage annotation requests.
	ReasonMachineCordoned = "Cordoned"
	// ReasonMachineCordoning means that the Node is not cordoned yet, although the stage annotation requests it.
	ReasonMachineCordoning = "Cordoning"
	// ReasonMachineCompleting means that the stage annotation is Complete or was removed, but the NodeMaintenance is not completed yet. When
	// it is, a removed annotation leaves no condition.
	ReasonMachineCompleting = "Completing"
	// ReasonMachineCompleted means that the stage annotation is Complete, and the NodeMaintenance is completed.
	ReasonMachineCompleted = "Completed"
	// ReasonInvalidStage means that the value of the stage annotation is not a stage, or is a stage before the present one.
	ReasonInvalidStage = "InvalidStage"
	// ReasonNotManaged means that no MachineDrainPolicy selects the Machine, so that the stage annotation begins no maintenance. One that has
	// begun continues, and the message says so.
	ReasonNotManaged = "NotManaged"
)
