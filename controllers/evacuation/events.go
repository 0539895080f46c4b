package evacuation

// Reasons of the events that this package writes, in workload clusters.
const (
	// eventInvalidEvacuator on a Pod: one of its evacuator annotations can't be used.
	eventInvalidEvacuator = "InvalidEvacuatorAnnotation"
	// eventEvicted on a Pod: it is evicted.
	eventEvicted = "EvictedForMaintenance"
	// eventDeletedUnready on a Pod: it is deleted, since it isn't ready and its budget can never have room.
	eventDeletedUnready = "DeletedForMaintenance"
	// eventEvictionRefused on an Evacuation: the API server has refused to evict the Pod.
	eventEvictionRefused = "EvictionRefused"
)

// evictedBecause is how the message of an event on a Pod that goes begins.
var evictedBecause = map[string]string{
	eventEvicted:        "Evicted, since ",
	eventDeletedUnready: "Deleted, since it isn't ready, its disruption budget can never have room, and ",
}
