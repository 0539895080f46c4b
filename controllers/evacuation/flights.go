package evacuation

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// An eviction can take long: an admission webhook has its time, and the API server retries conflicts on a budget. So nobody waits
// for one but its Pod. These bounds keep Pods that hang from taking all the room: those of one Node never have more than its
// share, and the rest of the cluster goes on beside them.
const (
	evictionsOnNode    = 16
	evictionsInCluster = 128
)

// flights are the evictions under way in one workload cluster.
type flights struct {
	mu      sync.Mutex
	pods    map[types.UID]string          // and their Nodes
	onNode  map[string]int                // how many
	budgets map[types.NamespacedName]bool // those whose Pods are being evicted one after the other
}

func newFlights() *flights {
	return &flights{pods: map[types.UID]string{}, onNode: map[string]int{}, budgets: map[types.NamespacedName]bool{}}
}

// start takes a place for the eviction of a Pod. False: there is none, or it is under way already.
func (f *flights) start(pod types.UID, node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, underWay := f.pods[pod]; underWay || len(f.pods) >= evictionsInCluster || f.onNode[node] >= evictionsOnNode {
		return false
	}
	f.pods[pod] = node
	f.onNode[node]++
	return true
}

// end gives the place back.
func (f *flights) end(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	node, underWay := f.pods[pod]
	if !underWay {
		return
	}
	delete(f.pods, pod)
	if f.onNode[node]--; f.onNode[node] == 0 {
		delete(f.onNode, node)
	}
}

func (f *flights) has(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, underWay := f.pods[pod]
	return underWay
}

// take reserves a budget for those who evict its Pods one after the other. False: it is taken.
func (f *flights) take(budget types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.budgets[budget] {
		return false
	}
	f.budgets[budget] = true
	return true
}

func (f *flights) giveBack(budget types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.budgets, budget)
}

func (f *flights) taken(budget types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.budgets[budget]
}
