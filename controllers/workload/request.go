package workload

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
)

// Request names an object in a workload cluster.
type Request struct {
	// Cluster is the namespace and name of the Cluster object in the management cluster.
	Cluster types.NamespacedName
	// Object is the namespace (empty if cluster-scoped) and name of the object in that cluster.
	Object types.NamespacedName
}

// String returns "cluster namespace/cluster name:object namespace/object name".
func (r Request) String() string { return r.Cluster.String() + ":" + r.Object.String() }

// ClusterOf returns the Cluster of a Request, for queues.FairOptions.
func ClusterOf(r Request) types.NamespacedName { return r.Cluster }

// Queue is the work queue of a controller of objects in workload clusters.
type Queue = workqueue.TypedRateLimitingInterface[Request]

// EnqueueObjects enqueues, for events in one workload cluster, the objects that a function returns for the event's object. For an update it
// calls the function for the old and the new object.
func EnqueueObjects[T client.Object](cluster types.NamespacedName,
	objects func(context.Context, T) []types.NamespacedName,
) handler.TypedEventHandler[T, Request] {
	enqueue := func(ctx context.Context, object T, queue Queue) {
		for _, key := range objects(ctx, object) {
			queue.Add(Request{Cluster: cluster, Object: key})
		}
	}
	return handler.TypedFuncs[T, Request]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[T], q Queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[T], q Queue) {
			enqueue(ctx, e.ObjectOld, q)
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc:  func(ctx context.Context, e event.TypedDeleteEvent[T], q Queue) { enqueue(ctx, e.Object, q) },
		GenericFunc: func(ctx context.Context, e event.TypedGenericEvent[T], q Queue) { enqueue(ctx, e.Object, q) },
	}
}

// EnqueueAffected enqueues, for events in one workload cluster, the Nodes that a change affects. before is nil for a created object, after
// for a deleted one.
func EnqueueAffected[T client.Object](cluster types.NamespacedName, nodes func(before, after T) []string) handler.TypedEventHandler[T, Request] {
	var none T
	enqueue := func(before, after T, queue Queue) {
		for _, node := range nodes(before, after) {
			queue.Add(Request{Cluster: cluster, Object: types.NamespacedName{Name: node}})
		}
	}
	return handler.TypedFuncs[T, Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], q Queue) { enqueue(none, e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q Queue) { enqueue(e.ObjectOld, e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[T], q Queue) { enqueue(e.Object, none, q) },
	}
}

// EnqueueEvacuations enqueues, for a Change, the objects that a function returns for each of the selected Evacuations. Without a connection
// it enqueues nothing: the first lists of the next connection enqueue all objects.
func (c *Clusters) EnqueueEvacuations(ctx context.Context, queue Queue, cluster types.NamespacedName,
	objects func(context.Context, *v1alpha1.Evacuation) []types.NamespacedName, which ...client.ListOption,
) {
	watched, err := c.Client(ctx, cluster)
	if err != nil {
		return
	}
	evacuations := &v1alpha1.EvacuationList{}
	if err := watched.List(ctx, evacuations, append(which, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the Evacuations to reconcile", "Cluster", klog.KRef(cluster.Namespace, cluster.Name))
		return
	}
	for i := range evacuations.Items {
		for _, key := range objects(ctx, &evacuations.Items[i]) {
			queue.Add(Request{Cluster: cluster, Object: key})
		}
	}
}

// OnNode selects the Evacuations of a Node's Pods.
func OnNode(node string) client.ListOption { return client.MatchingFields{evacuationsByNode: node} }

// OwnKey maps an object to its own key, for EnqueueObjects.
func OwnKey[T client.Object](_ context.Context, object T) []types.NamespacedName {
	return []types.NamespacedName{client.ObjectKeyFromObject(object)}
}

// Result turns the error of a reconciliation into its result. Without a connection, the next connection triggers a reconciliation; for a
// paused Cluster, its resumption does.
func Result(err error) (reconcile.Result, error) {
	if IsNotConnected(err) || IsPaused(err) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// pastInterval is the interval of reconciliations that a time in the past requests.
const pastInterval = time.Second

// RequeueAt returns the result of a reconciliation that requests the next one at a time, zero: only at the next event. now is the time of
// its decisions. A decision that returns a time in the past returns it again, so such a time must not reconcile an object continuously.
func RequeueAt(at, now time.Time) reconcile.Result {
	switch {
	case at.IsZero():
		return reconcile.Result{}
	case !at.After(now):
		return reconcile.Result{RequeueAfter: pastInterval}
	default:
		return reconcile.Result{RequeueAfter: at.Sub(now)}
	}
}

// The interval of retries after a conflict doubles from minConflictRetry up to maxConflictRetry.
const (
	minConflictRetry = 50 * time.Millisecond
	maxConflictRetry = time.Second
)

// setAsideRetry is how often a reconciliation is repeated that needs an object which cannot be decoded.
const setAsideRetry = 30 * time.Second

// conflictRetrier is the type of RetryConflicts.
type conflictRetrier[R comparable] struct {
	reconcile.TypedReconciler[R]

	intervals workqueue.TypedRateLimiter[R]
}

// RetryConflicts returns a reconciler that repeats the reconciliations of another one that conflict, without an error, until the cache has
// caught up. The event of the changed object does not suffice, because predicates may drop it. A watch that was interrupted with its API
// server may take half a minute to reconnect, and until then each retry is refused.
func RetryConflicts[R comparable](reconciler reconcile.TypedReconciler[R]) reconcile.TypedReconciler[R] {
	return conflictRetrier[R]{reconciler, workqueue.NewTypedItemExponentialFailureRateLimiter[R](minConflictRetry, maxConflictRetry)}
}

// Reconcile implements reconcile.TypedReconciler.
func (r conflictRetrier[R]) Reconcile(ctx context.Context, request R) (reconcile.Result, error) {
	result, err := r.TypedReconciler.Reconcile(ctx, request)
	if answers.IsConflict(err) {
		return reconcile.Result{RequeueAfter: r.intervals.When(request)}, nil
	}
	r.intervals.Forget(request)
	if setaside.Is(err) { // it was reported when it was set aside; its event may arrive before it can be read
		return reconcile.Result{RequeueAfter: setAsideRetry}, nil
	}
	return result, err //nolint:wrapcheck // it is that reconciler to its controller
}
