package evacuation

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// Limits of concurrent in-flight evictions. The response to an eviction can take long, because of admission webhooks and because the API
// server retries conflicts on a budget. The limit for each Node ensures that slow evictions on one Node do not delay those on others.
const (
	evictionsOnNode    = 16
	evictionsInCluster = 128
	// placesTogether is how many evictions must end, after the limit of the workload cluster was reached, before the next pass.
	placesTogether = 16
)

// inFlight contains the in-flight evictions of one workload cluster.
type inFlightEvictions struct {
	mu      sync.Mutex
	pods    map[types.UID]inFlightEviction
	onNode  map[string]int                // number of in-flight evictions, by Node
	budgets map[types.NamespacedName]bool // reserved budgets, whose Pods are being evicted sequentially
	full    bool                          // the limit was reached, and fewer than placesTogether evictions have ended since
}

// inFlightEviction is one in-flight eviction. It keeps the Pod as it was when it was admitted: if the Pod is observed to terminate before the new
// status of its budget is observed, the eviction must still count against the budget.
type inFlightEviction struct {
	pod   budgets.Pod
	begun time.Time
}

func newInFlightEvictions() *inFlightEvictions {
	return &inFlightEvictions{pods: map[types.UID]inFlightEviction{}, onNode: map[string]int{}, budgets: map[types.NamespacedName]bool{}}
}

// start adds the eviction of a Pod. It returns false if a limit is reached, or if the eviction is already in flight.
func (f *inFlightEvictions) start(pod budgets.Pod, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, underWay := f.pods[pod.UID]; underWay || !f.reserve(pod.Node) {
		return false
	}
	f.pods[pod.UID] = inFlightEviction{pod: pod, begun: now}
	f.onNode[pod.Node]++
	return true
}

// reserve reports whether the limits allow an eviction on a Node. It sets full if the limit of the workload cluster is reached.
func (f *inFlightEvictions) reserve(node string) bool {
	f.full = f.full || len(f.pods) >= evictionsInCluster
	return len(f.pods) < evictionsInCluster && f.onNode[node] < evictionsOnNode
}

// canReserve reports whether the limits allow an eviction on a Node.
func (f *inFlightEvictions) canReserve(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reserve(node)
}

// isFull reports whether a pass would be wasted, since it could start no evictions, or only a few. The response to each in-flight eviction
// enqueues the workload cluster again.
func (f *inFlightEvictions) isFull() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// end removes the eviction of a Pod.
func (f *inFlightEvictions) end(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ended, underWay := f.pods[pod]
	if !underWay {
		return
	}
	delete(f.pods, pod)
	f.full = f.full && len(f.pods) > evictionsInCluster-placesTogether
	if f.onNode[ended.pod.Node]--; f.onNode[ended.pod.Node] == 0 {
		delete(f.onNode, ended.pod.Node)
	}
}

// all returns the in-flight evictions.
func (f *inFlightEvictions) all() []inFlightEviction {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.pods))
}

// has reports whether the eviction of a Pod is in flight.
func (f *inFlightEvictions) has(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, underWay := f.pods[pod]
	return underWay
}

// takeDisruption reserves a budget for the sequential eviction of its Pods. It returns false if the budget is already reserved.
func (f *inFlightEvictions) takeDisruption(budget types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.budgets[budget] {
		return false
	}
	f.budgets[budget] = true
	return true
}

func (f *inFlightEvictions) returnDisruption(budget types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.budgets, budget)
}

func (f *inFlightEvictions) takenDisruptions(budget types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.budgets[budget]
}
