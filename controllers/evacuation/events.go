package evacuation

// Reasons of the events that this package writes in workload clusters.
const (
	// eventInvalidEvacuator on a Pod means that one of its evacuator annotations is invalid and has no effect.
	eventInvalidEvacuator = "InvalidEvacuatorAnnotation"
	// eventEvicted on a Pod means that it is evicted.
	eventEvicted = "EvictedForMaintenance"
	// eventDeletedUnready on a Pod means that it is deleted, since it is not ready and its budget can never allow a disruption.
	eventDeletedUnready = "DeletedForMaintenance"
	// eventEvictionRefused on an Evacuation means that the API server has refused to evict the Pod.
	eventEvictionRefused = "EvictionRefused"
)

// removed contains the prefixes of the messages of events on removed Pods.
var removed = map[string]string{
	eventEvicted:        "Evicted: ",
	eventDeletedUnready: "Deleted, because the Pod is not ready and its PodDisruptionBudget can never allow a disruption: ",
}
