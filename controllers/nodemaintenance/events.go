package nodemaintenance

// Reasons of the events that this package writes, in workload clusters. A selection that isn't plausible is told of by an event
// with the reason of its condition.
const (
	// eventDrained on a NodeMaintenance: no Pod that must go is left.
	eventDrained = "Drained"
	// eventFastForwarded on a NodeMaintenance: on some of its Nodes an older one is ahead, and Pods go that it would still keep.
	eventFastForwarded = "FastForwarded"
	// eventCordonConflict on a NodeMaintenance: somebody keeps making a Node schedulable that it keeps cordoned.
	eventCordonConflict = "CordonConflict"
	// eventDaemonSetToleratesMaintenance on a NodeMaintenance: Pods of DaemonSets are left, since they would come back at once.
	eventDaemonSetToleratesMaintenance = "DaemonSetToleratesMaintenance"
	// eventEvacuationRefused on a Pod: the API server refuses to create its Evacuation, as a ResourceQuota of its namespace may have it.
	eventEvacuationRefused = "EvacuationRefused"
	// eventMachineGone on a NodeMaintenance: the Machine that it serves is gone, and the Node is not.
	eventMachineGone = "MachineGone"
	// eventUnknownDrainLabel on a Pod: its drain label has no effect, and it is drained.
	eventUnknownDrainLabel = "UnknownDrainLabel"
	// eventInvalidEvacuator on a Pod: one of its evacuator annotations can't be used.
	eventInvalidEvacuator = "InvalidEvacuatorAnnotation"
	// eventReplacementReturned on a NodeMaintenance: a controller replaces its evicted Pods on the cordoned Node.
	eventReplacementReturned = "ReplacementReturned"
	// eventDeletedAtTimeout on a Pod: the drain of its Node runs out of time, so it is deleted without regard to its budget.
	eventDeletedAtTimeout = "DeletedAtDrainTimeout"
)
