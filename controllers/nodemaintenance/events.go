package nodemaintenance

// Reasons of the events that this package writes, in workload clusters.
const (
	// eventDrained on a NodeMaintenance: no Pod that must go is left.
	eventDrained = "Drained"
)
