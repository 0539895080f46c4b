package nodemaintenance

// Reasons of the events that this package writes, in workload clusters.
const (
	// eventDrained on a NodeMaintenance: no Pod that must go is left.
	eventDrained = "Drained"
	// eventDaemonSetToleratesMaintenance on a NodeMaintenance: Pods of DaemonSets are left, since they would come back at once.
	eventDaemonSetToleratesMaintenance = "DaemonSetToleratesMaintenance"
)
