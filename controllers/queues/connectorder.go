package queues

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

const (
	// idleConnections is the number of workload clusters without a deleted Machine that the manager connects to in a second, after a start. To
	// connect and to check the bundle takes about 30 ms of CPU.
	idleConnections = 20
	// urgentPriority is the priority of connections to workload clusters with deleted Machines.
	urgentPriority = 100
	// firstList is how long after the start requests may come from the first list of Clusters.
	firstList = time.Minute
	// surveyTimeout limits the wait for the first list of Machines.
	surveyTimeout = 10 * time.Second
)

// ConnectOrder decides when a started manager connects to workload clusters: at once to those with deleted Machines, and to the others at a
// limited rate, so that drains do not wait for idle workload clusters.
type ConnectOrder struct {
	// Machines reads the management cluster's Machines.
	Machines client.Reader
	Clock    clock.PassiveClock

	mu    sync.Mutex
	queue *connectQueue
}

// Options returns the options of the ClusterCache's controller.
func (o *ConnectOrder) Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.queue = newConnectQueue(newQueue(name, limiter), o.Clock, o.withDeletedMachines)
			return o.queue
		},
	}
}

// ConnectNow has the manager connect to a workload cluster without further delay.
func (o *ConnectOrder) ConnectNow(cluster types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.queue != nil {
		o.queue.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(urgentPriority)}, reconcile.Request{NamespacedName: cluster})
	}
}

// withDeletedMachines returns the Clusters that have Machines which are being deleted, or drained for another reason.
func (o *ConnectOrder) withDeletedMachines() (sets.Set[types.NamespacedName], error) {
	ctx, cancel := context.WithTimeout(context.Background(), surveyTimeout)
	defer cancel()
	machines := &clusterv1.MachineList{}
	if err := o.Machines.List(ctx, machines, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err //nolint:wrapcheck // only logged
	}
	clusters := sets.New[types.NamespacedName]()
	for i := range machines.Items {
		if m := &machines.Items[i]; !m.DeletionTimestamp.IsZero() || machinedrain.IsDraining(m) {
			clusters.Insert(types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.ClusterName})
		}
	}
	return clusters, nil
}

// connectQueue is the queue of the ClusterCache's controller. It orders the requests for the Clusters that exist when the controller
// starts.
type connectQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	clock  clock.PassiveClock
	survey func() (sets.Set[types.NamespacedName], error)
	began  time.Time

	mu     sync.Mutex
	urgent sets.Set[types.NamespacedName] // nil: not surveyed yet
	idle   int                            // Clusters that were delayed
}

func newConnectQueue(queue priorityqueue.PriorityQueue[reconcile.Request], now clock.PassiveClock,
	survey func() (sets.Set[types.NamespacedName], error),
) *connectQueue {
	return &connectQueue{PriorityQueue: queue, clock: now, survey: survey, began: now.Now()}
}

// AddWithOpts implements priorityqueue.PriorityQueue. The first list of Clusters has a low priority, as later resyncs have.
func (q *connectQueue) AddWithOpts(options priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, request := range requests {
		if options.Priority != nil && *options.Priority == handler.LowPriority && options.After == 0 && q.clock.Since(q.began) < firstList {
			q.PriorityQueue.AddWithOpts(q.first(request), request)
		} else {
			q.PriorityQueue.AddWithOpts(options, request)
		}
	}
}

// first returns the priority and the delay with which a Cluster of the first list is connected.
func (q *connectQueue) first(request reconcile.Request) priorityqueue.AddOpts {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.urgent == nil {
		var err error
		if q.urgent, err = q.survey(); err != nil {
			ctrl.Log.WithName("queues").Error(err, "Failed to list Machines, connecting to workload clusters in any order")
			q.urgent = sets.New[types.NamespacedName]()
		}
	}
	if q.urgent.Has(request.NamespacedName) {
		return priorityqueue.AddOpts{Priority: ptr.To(urgentPriority)}
	}
	delay := time.Duration(q.idle) * time.Second / idleConnections
	q.idle++
	return priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority), After: delay}
}
