package machine

// Reasons of the events that this package writes on Machines.
const (
	// eventDrainRequested: the drain of the Machine's Node has been requested in the workload cluster.
	eventDrainRequested = "NodeDrainRequested"
	// eventHookReleased: our hook is off, and why.
	eventHookReleased = "NodeMaintenanceHookReleased"
)
