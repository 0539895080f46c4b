package evacuation

// Reasons of the events that this package writes, in workload clusters.
const (
	// eventInvalidEvacuator on a Pod: one of its evacuator annotations can't be used.
	eventInvalidEvacuator = "InvalidEvacuatorAnnotation"
	// eventEvicted on a Pod: it is evicted.
	eventEvicted = "EvictedForMaintenance"
	// eventEvictionRefused on an Evacuation: the API server has refused to evict the Pod.
	eventEvictionRefused = "EvictionRefused"
)
