package machine

// Reasons of the events that this package writes on Machines.
const (
	// eventDrainRequested means that the controller has requested the drain of the Machine's Node in the workload cluster.
	eventDrainRequested = "NodeDrainRequested"
	// eventMaintenanceNameTaken means that a NodeMaintenance of another author has the name that this provider uses for the Machine's Node.
	eventMaintenanceNameTaken = "NodeMaintenanceNameTaken"
	// eventHookReleased means that the hook has been released. The message says why.
	eventHookReleased = "NodeMaintenanceHookReleased"
)
