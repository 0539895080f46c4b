package nodemaintenance

// Reasons of the events that this package writes in workload clusters. The events about an implausible selection and about
// Pods of DaemonSets that stay have the reasons of the conditions SelectionPlausible and PodsRemaining.
const (
	// eventDrained on a NodeMaintenance means that all Pods that must be evacuated have terminated.
	eventDrained = "Drained"
	// eventFastForwarded on a NodeMaintenance means that an older NodeMaintenance has reached a later step on some of its Nodes, so that Pods
	// there are evacuated earlier than its own drain plan says.
	eventFastForwarded = "FastForwarded"
	// eventCordonConflict on a NodeMaintenance means that another actor repeatedly makes a cordoned Node schedulable.
	eventCordonConflict = "CordonConflict"
	// eventEvacuationRefused on a Pod means that the API server refuses to create its Evacuation, for example because of a ResourceQuota, or
	// to change one that exists.
	eventEvacuationRefused = "EvacuationRefused"
	// eventMachineDeleted on a NodeMaintenance means that the Machine that it serves no longer exists, but the Node does.
	eventMachineDeleted = "MachineDeleted"
	// eventRestoreFailed on a NodeMaintenance means that the API server refuses to restore a Node, to change its conditions, or to withdraw
	// from an Evacuation. The manager repeats the request.
	eventRestoreFailed = "RestoreFailed"
	// eventUnknownDrainLabel on a Pod means that its drain label has an unknown value and no effect: the Pod is drained.
	eventUnknownDrainLabel = "UnknownDrainLabel"
	// eventReplacementReturned on a NodeMaintenance means that a controller replaces its evicted Pods on the cordoned Node.
	eventReplacementReturned = "ReplacementReturned"
	// eventDeletedAtTimeout on a Pod means that it is deleted before the drain timeout, regardless of its PodDisruptionBudgets.
	eventDeletedAtTimeout = "DeletedAtDrainTimeout"
)
