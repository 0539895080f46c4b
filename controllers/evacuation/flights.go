package evacuation

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// An eviction can take long: an admission webhook has its time, and the API server retries conflicts on a budget. So nobody waits
// for one but its Pod. These bounds keep Pods that hang from taking all the room: those of one Node never have more than its
// share, and the rest of the cluster goes on beside them.
const (
	evictionsOnNode    = 16
	evictionsInCluster = 128
	// placesTogether are worth a look at all Pods, after there was none.
	placesTogether = 16
)

// flights are the evictions under way in one workload cluster.
type flights struct {
	mu      sync.Mutex
	pods    map[types.UID]flight
	onNode  map[string]int                // how many
	budgets map[types.NamespacedName]bool // those whose Pods are being evicted one after the other
	full    bool                          // there was no place for one, and there aren't placesTogether yet
}

// flight is one eviction under way, of a Pod as it was when it was admitted: that it ends, or is gone, may be seen before its budget's
// new status is, and doesn't give its room away.
type flight struct {
	pod   budgets.Pod
	begun time.Time
}

func newFlights() *flights {
	return &flights{pods: map[types.UID]flight{}, onNode: map[string]int{}, budgets: map[types.NamespacedName]bool{}}
}

// start takes a place for the eviction of a Pod. False: there is none, or it is under way already.
func (f *flights) start(pod budgets.Pod, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, underWay := f.pods[pod.UID]; underWay || !f.place(pod.Node) {
		return false
	}
	f.pods[pod.UID] = flight{pod: pod, begun: now}
	f.onNode[pod.Node]++
	return true
}

// place says whether one is free for a Pod of a Node, and notes if there is none at all.
func (f *flights) place(node string) bool {
	f.full = f.full || len(f.pods) >= evictionsInCluster
	return len(f.pods) < evictionsInCluster && f.onNode[node] < evictionsOnNode
}

// hasPlace says whether an eviction on a Node could start.
func (f *flights) hasPlace(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.place(node)
}

// isFull says whether it isn't worth looking for Pods to evict: none of them, or only a few of thousands, could go. The evictions under
// way end, and each tells.
func (f *flights) isFull() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// end gives the place back.
func (f *flights) end(pod types.UID) {
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

// all are the evictions under way.
func (f *flights) all() []flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.pods))
}

// has says whether a Pod's eviction is under way.
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
