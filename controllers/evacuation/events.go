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

// removed is how the message of an event on a removed Pod begins.
var removed = map[string]string{
	eventEvicted:        "Evicted: ",
	eventDeletedUnready: "Deleted, because the Pod is not ready and its PodDisruptionBudget can never allow a disruption: ",
}
