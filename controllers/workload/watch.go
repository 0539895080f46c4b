package workload

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// NewController adds a controller of objects in workload clusters to the manager. enqueue maps the changes of drain watches to requests; it
// must not block. Watches of objects are added for each connection, see Watch.
func (c *Clusters) NewController(mgr ctrl.Manager, name string, reconciler reconcile.TypedReconciler[Request], options controller.TypedOptions[Request],
	enqueue func(context.Context, Queue, Change),
) (controller.TypedController[Request], error) {
	options.Reconciler = RetryConflicts(reconciler)
	added, err := controller.NewTyped(name, mgr, options)
	if err != nil {
		return nil, errors.Wrapf(err, "setting up controller %s", name)
	}
	err = added.Watch(source.TypedFunc[Request](func(ctx context.Context, queue Queue) error {
		c.Subscribe(func(change Change) { enqueue(ctx, queue, change) })
		return nil
	}))
	return added, errors.Wrapf(err, "setting up controller %s", name)
}

// Watches returns the watches of a controller in a workload cluster. The ClusterCache stops watches when the connection ends; they are
// added to the next connection.
type Watches func(cluster types.NamespacedName) []clustercache.Watcher

// Watch returns a watch of the objects of a kind. enqueue maps their events to requests, and matters selects the events (default: all).
// Names must be unique in a connection, because they identify watches that already exist.
func Watch[T client.Object, R comparable](name string, controller clustercache.SourceWatcher[R], kind T, enqueue handler.TypedEventHandler[T, R],
	matters ...predicate.TypedPredicate[T],
) clustercache.Watcher {
	return watcher{name, kind, func(cache ctrlcache.Cache) error {
		events := source.TypedKind(cache, kind, enqueue, matters...)
		shared, is := cache.(*sharingCache)
		if !is {
			return controller.Watch(events) //nolint:wrapcheck // the caller does
		}
		// A source that waits for a list of a connection that has ended would wait until the process ends.
		return controller.Watch(source.TypedFunc[R](func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
			ctx, cancel := context.WithCancel(ctx)
			context.AfterFunc(shared.ctx, cancel)
			return events.Start(ctx, queue) //nolint:wrapcheck // it is that source to its controller
		})) //nolint:wrapcheck // the caller does
	}}
}

// MarkChanged passes new Nodes, those of the first list that have a mark, and those whose mark has changed.
func MarkChanged[M comparable](mark func(*corev1.Node) M) predicate.TypedPredicate[*corev1.Node] {
	var none M
	return predicate.TypedFuncs[*corev1.Node]{
		CreateFunc: func(e event.TypedCreateEvent[*corev1.Node]) bool { return !e.IsInInitialList || mark(e.Object) != none },
		UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool { return mark(e.ObjectOld) != mark(e.ObjectNew) },
		DeleteFunc: func(event.TypedDeleteEvent[*corev1.Node]) bool { return false },
	}
}

// Changed passes the changes that matter. before is nil for a created object, after for a deleted one.
func Changed[T client.Object](matters func(before, after T) bool) predicate.TypedPredicate[T] {
	var none T
	return predicate.TypedFuncs[T]{
		CreateFunc: func(e event.TypedCreateEvent[T]) bool { return matters(none, e.Object) },
		UpdateFunc: func(e event.TypedUpdateEvent[T]) bool { return matters(e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(e event.TypedDeleteEvent[T]) bool { return matters(e.Object, none) },
	}
}

// AddWatches adds the missing watches to a connection, after the indexes that their controllers use. Those of the installed kinds run as
// long as the connection, all others on demand.
func (c *Clusters) AddWatches(ctx context.Context, cluster types.NamespacedName, all []Watches) error {
	var installed, demanded []clustercache.Watcher
	for _, watches := range all {
		for _, w := range watches(cluster) {
			if isInstalledKind(w.Object()) {
				installed = append(installed, w)
			} else {
				demanded = append(demanded, w)
			}
		}
	}
	own, err := c.connection(ctx, cluster)
	if err != nil {
		return err
	}
	for _, watcher := range slices.Concat(indexes, installed, []clustercache.Watcher{c.addOnDemand(cluster, installed, demanded)}) {
		if err := c.cache.Watch(ctx, cluster, c.informers.share(cluster, own, watcher)); err != nil {
			return errors.Wrapf(err, "adding %s to workload Cluster %s", watcher.Name(), cluster)
		}
	}
	return c.confirm(ctx, cluster, own)
}

// watcher implements clustercache.Watcher.
type watcher struct {
	name   string
	object client.Object
	watch  func(ctrlcache.Cache) error
}

// Name implements clustercache.Watcher.
func (w watcher) Name() string { return w.name }

// Object implements clustercache.Watcher.
func (w watcher) Object() client.Object { return w.object }

// Watch implements clustercache.Watcher.
func (w watcher) Watch(cache ctrlcache.Cache) error { return w.watch(cache) }
