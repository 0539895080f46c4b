package daemonset

// Reasons of the events that this package writes, in workload clusters.
const (
	// eventDeleted on a Pod means that it is deleted, and not replaced during the maintenance.
	eventDeleted = "DeletedForMaintenance"
)
