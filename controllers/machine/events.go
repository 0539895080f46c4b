package machine

// Reasons of the events that this package writes on Machines.
const (
	// eventDrainRequested: the drain of the Machine's Node has been requested in the workload cluster.
	eventDrainRequested = "NodeDrainRequested"
	// eventMaintenanceNameTaken: a NodeMaintenance of another author has the name that the one of the Machine's Node would have.
	eventMaintenanceNameTaken = "NodeMaintenanceNameTaken"
	// eventHookReleased: our hook is off, and why.
	eventHookReleased = "NodeMaintenanceHookReleased"
)
