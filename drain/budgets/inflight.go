package budgets

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Limits of concurrent in-flight evictions. The response to an eviction can take long, because of admission webhooks and because the API
// server retries conflicts on a budget. The limit for each Node ensures that slow evictions on one Node do not delay those on others. Those
// that hang count only for the Pods of their Namespace, so that the webhook of one application does not delay all others.
const (
	EvictionsOnNode    = 16
	EvictionsInCluster = 128
	// evictionsWithHanging is the limit of the workload cluster that includes the evictions that hang. A Namespace may use two thirds of what
	// the others leave. If it is alone, that is EvictionsInCluster.
	evictionsWithHanging = EvictionsInCluster * 3 / 2
	// EvictionHangsAfter is the age from which on an in-flight eviction hangs.
	EvictionHangsAfter = 3 * time.Second
)

// Eviction is an in-flight eviction. It keeps the Pod as it was when it was admitted: if the Pod is observed to terminate before the new
// status of its budget is observed, the eviction must still count against the budget.
type Eviction struct {
	Pod   Pod
	Begun time.Time
	Hangs bool
}

// Evictions are the in-flight evictions of a workload cluster, by Pod.
type Evictions map[types.UID]Eviction

// Answering returns the number of evictions that do not hang.
func (all Evictions) Answering() (n int) {
	for _, e := range all {
		if !e.Hangs {
			n++
		}
	}
	return n
}

// FreeFor returns how many more evictions the limit of a Pod's Node allows in its Namespace, 0 if the Namespace uses its share. The limit
// of the workload cluster does not count: no other Pod could use the disruptions that the Pods of the oldest drain leave because of it.
func (all Evictions) FreeFor(pod Pod) int {
	ofNamespace, onNode := 0, 0
	for _, e := range all {
		sameNamespace := e.Pod.Namespace == pod.Namespace
		if sameNamespace {
			ofNamespace++
		}
		if e.Pod.Node == pod.Node && (sameNamespace || !e.Hangs) {
			onNode++
		}
	}
	if others := len(all) - ofNamespace; ofNamespace >= (evictionsWithHanging-others)*2/3 {
		return 0
	}
	return EvictionsOnNode - onNode
}

// Allow reports whether the limits allow the eviction of a Pod.
func (all Evictions) Allow(pod Pod) bool {
	return all.Answering() < EvictionsInCluster && all.FreeFor(pod) > 0
}
