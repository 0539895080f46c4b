package remote

import (
	"context"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Request names an object in a workload cluster.
type Request struct {
	// Cluster is the namespace and name of the Cluster object in the management cluster.
	Cluster types.NamespacedName
	// Object is the namespace (empty if cluster-scoped) and name of the object in that cluster.
	Object types.NamespacedName
}

// String is "cluster namespace/cluster name:object namespace/object name".
func (r Request) String() string { return r.Cluster.String() + ":" + r.Object.String() }

// Queue is the work queue of a controller whose work is in workload clusters.
type Queue = workqueue.TypedRateLimitingInterface[Request]

// EnqueueObjects enqueues, for events in one workload cluster, what objects maps the event's object to. For an update it
// looks at the old and at the new object.
func EnqueueObjects[T client.Object](cluster types.NamespacedName, objects func(context.Context, T) []types.NamespacedName) handler.TypedEventHandler[T, Request] {
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

// EnqueueAffected enqueues, for events in one workload cluster, the Nodes for which a change makes a difference. before is nil
// for an object that is new, after for one that is gone.
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

// Itself maps an object to its own key, for EnqueueObjects.
func Itself[T client.Object](_ context.Context, object T) []types.NamespacedName {
	return []types.NamespacedName{client.ObjectKeyFromObject(object)}
}

// conflictRetry is when work is taken up again whose object has changed since the watch has shown it: time for the watch to
// catch up. Its event alone would not do, since predicates leave out the changes that don't matter.
const conflictRetry = 50 * time.Millisecond

// Rest turns the error of a reconciliation into its result. What can't reach its workload cluster rests until the next
// connection, what may not until the Cluster is resumed; a conflict is no error, but soon tried again.
func Rest(err error) (reconcile.Result, error) {
	switch {
	case IsNotConnected(err), IsPaused(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(errors.Cause(err)):
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	default:
		return reconcile.Result{}, err
	}
}
