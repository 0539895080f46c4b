// Package queues has the work queues of the manager's controllers: a fair one for those that serve many workload clusters, and the order in
// which a started manager connects to workload clusters.
package queues

import (
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// queue is controller-runtime's priority queue with methods that return when the queue is shut down. In controller-runtime v0.24 they may
// block forever then, and with them the workers of the controller: https://github.com/kubernetes-sigs/controller-runtime/issues/3538. The
// goroutine of a method that blocks ends with the process.
type queue[T comparable] struct {
	priorityqueue.PriorityQueue[T]
	shutdown chan struct{} // closed by ShutDown
}

// newQueue returns a queue for the named controller.
func newQueue[T comparable](name string, limiter workqueue.TypedRateLimiter[T]) *queue[T] {
	return &queue[T]{shutdown: make(chan struct{}), PriorityQueue: priorityqueue.New(name, func(o *priorityqueue.Opts[T]) {
		o.Log = ctrl.Log.WithValues("controller", name)
		o.RateLimiter = limiter
	})}
}

// queued is a request with its priority.
type queued[T comparable] struct {
	request  T
	priority int
}

// GetWithPriority implements priorityqueue.PriorityQueue.
func (q *queue[T]) GetWithPriority() (request T, priority int, shutdown bool) {
	next := make(chan queued[T], 1)
	go func() {
		if request, priority, shutdown := q.PriorityQueue.GetWithPriority(); !shutdown {
			next <- queued[T]{request, priority}
		}
	}()
	select {
	case <-q.shutdown:
		return request, priority, true
	case got := <-next:
		return got.request, got.priority, false
	}
}

// Get implements workqueue.TypedInterface.
func (q *queue[T]) Get() (request T, shutdown bool) {
	request, _, shutdown = q.GetWithPriority()
	return request, shutdown
}

// Done implements workqueue.TypedInterface.
func (q *queue[T]) Done(request T) {
	done := make(chan struct{})
	go func() {
		q.PriorityQueue.Done(request)
		close(done)
	}()
	select {
	case <-q.shutdown:
	case <-done:
	}
}

// ShutDown implements workqueue.TypedInterface.
func (q *queue[T]) ShutDown() {
	close(q.shutdown)
	q.PriorityQueue.ShutDown()
}

// ShutDownWithDrain implements workqueue.TypedInterface. As in controller-runtime, it does not drain the queue.
func (q *queue[T]) ShutDownWithDrain() { q.ShutDown() }
