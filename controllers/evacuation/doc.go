// Package evacuation reconciles Evacuations in workload clusters, as drain/evacuation decides: it selects the active evacuator, enforces
// the progress deadline, and deletes the Evacuation at the end. It does not evict Pods: package evictor does.
package evacuation
