package queues

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

const (
	// minRetry and maxRetry bound the exponential backoff of a reconciliation that fails. controller-runtime's own maximum is 17 minutes,
	// which is too long for a Machine to wait after an administrator has removed what refused our writes.
	minRetry = 5 * time.Millisecond
	maxRetry = time.Minute
)

// FairOptions returns the options of a controller whose workers serve many workload clusters. clusterOf returns the Cluster that a
// request belongs to. A workload cluster whose API server answers slowly blocks at most a share of the workers: see fairQueue.
func FairOptions[T comparable](workers int, clusterOf func(T) types.NamespacedName) controller.TypedOptions[T] {
	return controller.TypedOptions[T]{
		MaxConcurrentReconciles: workers,
		NewQueue: func(name string, _ workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimitingInterface[T] { // controllers may share options
			return newFairQueue(newQueue(name, workqueue.NewTypedItemExponentialFailureRateLimiter[T](minRetry, maxRetry)), workers, clusterOf)
		},
	}
}

// fairQueue shares the workers of a controller among workload clusters. A worker takes the next request of a cluster only while the
// cluster has fewer requests running than there are free workers (the dynamic threshold of shared-memory switches). So one cluster
// alone gets half of the workers, and n clusters whose API servers all hang leave one part in n+1 free. A cluster with nothing running
// always gets the next free worker.
//
// A request over the threshold is parked. The embedded queue treats it as running, so it does not return the request again, and events
// for it coalesce. Every worker that finishes a request checks the parked ones first, so that none is lost.
type fairQueue[T comparable] struct {
	priorityqueue.PriorityQueue[T]
	workers   int
	clusterOf func(T) types.NamespacedName

	mu      sync.Mutex
	running map[T]types.NamespacedName
	counts  map[types.NamespacedName]int // of running, by cluster
	parked  map[types.NamespacedName][]queued[T]
}

func newFairQueue[T comparable](queue priorityqueue.PriorityQueue[T], workers int, clusterOf func(T) types.NamespacedName) *fairQueue[T] {
	return &fairQueue[T]{
		PriorityQueue: queue, workers: workers, clusterOf: clusterOf,
		running: map[T]types.NamespacedName{}, counts: map[types.NamespacedName]int{}, parked: map[types.NamespacedName][]queued[T]{},
	}
}

// GetWithPriority implements priorityqueue.PriorityQueue.
func (q *fairQueue[T]) GetWithPriority() (request T, priority int, shutdown bool) {
	for !q.ShuttingDown() {
		if next, found := q.unpark(); found {
			return next.request, next.priority, false
		}
		request, priority, shutdown = q.PriorityQueue.GetWithPriority()
		if shutdown || q.startOrPark(request, priority, q.clusterOf(request)) {
			return request, priority, shutdown
		}
	}
	return request, priority, true
}

// Get implements workqueue.TypedInterface.
func (q *fairQueue[T]) Get() (request T, shutdown bool) {
	request, _, shutdown = q.GetWithPriority()
	return request, shutdown
}

// Done implements workqueue.TypedInterface.
func (q *fairQueue[T]) Done(request T) {
	q.mu.Lock()
	if cluster, ran := q.running[request]; ran {
		delete(q.running, request)
		if q.counts[cluster]--; q.counts[cluster] == 0 {
			delete(q.counts, cluster)
		}
	}
	q.mu.Unlock()
	q.PriorityQueue.Done(request)
}

// unpark starts the parked request that has waited longest in the cluster with the fewest running, if that cluster may start one.
func (q *fairQueue[T]) unpark() (next queued[T], found bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var from types.NamespacedName
	for cluster := range q.parked {
		if q.mayStart(cluster) && (!found || q.counts[cluster] < q.counts[from]) {
			from, found = cluster, true
		}
	}
	if !found {
		return next, false
	}
	next = q.parked[from][0]
	if q.parked[from] = q.parked[from][1:]; len(q.parked[from]) == 0 {
		delete(q.parked, from)
	}
	q.start(next.request, from)
	return next, true
}

func (q *fairQueue[T]) startOrPark(request T, priority int, cluster types.NamespacedName) (started bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mayStart(cluster) {
		q.parked[cluster] = append(q.parked[cluster], queued[T]{request, priority})
		return false
	}
	q.start(request, cluster)
	return true
}

func (q *fairQueue[T]) mayStart(cluster types.NamespacedName) bool {
	return q.counts[cluster] < q.workers-len(q.running)
}

func (q *fairQueue[T]) start(request T, cluster types.NamespacedName) {
	q.running[request] = cluster
	q.counts[cluster]++
}
