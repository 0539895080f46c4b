package daemonset

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonsets"
)

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[remote.Request]) error {
	r.deleted = cache.New[deletion](ctx, deletionTTL)
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "daemonset", r, options, r.enqueue)
	return err
}

// Watch adds the watches of a workload cluster's Nodes, NodeMaintenances and Evacuations. Every Node is looked at once for each
// connection: that is when a taint that nobody owns any more is found.
func (r *Reconciler) Watch(ctx context.Context, connections clustercache.ClusterCache, cluster types.NamespacedName) error {
	err := connections.Watch(ctx, cluster, clustercache.NewWatcher(clustercache.TypedWatcherOptions[*corev1.Node, remote.Request]{
		Name:         "daemonset-Nodes",
		Watcher:      r.controller,
		Kind:         &corev1.Node{},
		EventHandler: remote.EnqueueObjects(cluster, remote.Itself[*corev1.Node]),
		Predicates:   []predicate.TypedPredicate[*corev1.Node]{taintMatters{}},
	}))
	if err != nil {
		return errors.Wrap(err, "watching Nodes")
	}
	err = connections.Watch(ctx, cluster, clustercache.NewWatcher(clustercache.TypedWatcherOptions[*v1alpha1.NodeMaintenance, remote.Request]{
		Name:         "daemonset-NodeMaintenances",
		Watcher:      r.controller,
		Kind:         &v1alpha1.NodeMaintenance{},
		EventHandler: nodesAffected(cluster),
	}))
	if err != nil {
		return errors.Wrap(err, "watching NodeMaintenances")
	}
	err = connections.Watch(ctx, cluster, clustercache.NewWatcher(clustercache.TypedWatcherOptions[*v1alpha1.Evacuation, remote.Request]{
		Name:    "daemonset-Evacuations",
		Watcher: r.controller,
		Kind:    &v1alpha1.Evacuation{},
		EventHandler: remote.EnqueueObjects(cluster, func(_ context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
			return nodeOf(e)
		}),
	}))
	return errors.Wrap(err, "watching Evacuations")
}

// taintMatters passes Nodes that are new, and those whose taint of ours has come or gone.
type taintMatters struct {
	predicate.TypedFuncs[*corev1.Node]
}

// Update implements predicate.TypedPredicate.
func (taintMatters) Update(e event.TypedUpdateEvent[*corev1.Node]) bool {
	return daemonsets.Tainted(e.ObjectOld) != daemonsets.Tainted(e.ObjectNew)
}

// Delete implements predicate.TypedPredicate: a Node that is gone needs nothing.
func (taintMatters) Delete(event.TypedDeleteEvent[*corev1.Node]) bool { return false }

// nodesAffected enqueues the Nodes for which a change of a NodeMaintenance makes a difference.
func nodesAffected(cluster types.NamespacedName) handler.TypedEventHandler[*v1alpha1.NodeMaintenance, remote.Request] {
	enqueue := func(queue remote.Queue, before, after *v1alpha1.NodeMaintenance) {
		for _, node := range daemonsets.Affected(before, after) {
			queue.Add(remote.Request{Cluster: cluster, Object: types.NamespacedName{Name: node}})
		}
	}
	return handler.TypedFuncs[*v1alpha1.NodeMaintenance, remote.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.NodeMaintenance], queue remote.Queue) {
			enqueue(queue, nil, e.Object)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.NodeMaintenance], queue remote.Queue) {
			enqueue(queue, e.ObjectOld, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1alpha1.NodeMaintenance], queue remote.Queue) {
			enqueue(queue, e.Object, nil)
		},
	}
}

// nodeOf returns the Node of an Evacuation whose turn is ours.
func nodeOf(e *v1alpha1.Evacuation) []types.NamespacedName {
	node, class := e.Annotations[v1alpha1.EvacuationNodeAnnotation], e.Status.ActiveEvacuatorClass
	if node == "" || class == nil || *class != v1alpha1.EvacuatorClassDaemonSet {
		return nil
	}
	return []types.NamespacedName{{Name: node}}
}

// enqueue maps what a drain watch sees to Nodes: what was not known before may be the last that an Evacuation has waited for.
func (r *Reconciler) enqueue(ctx context.Context, queue remote.Queue, change remote.Change) {
	var nodes []types.NamespacedName
	switch {
	case change.Pod != nil:
		owner := metav1.GetControllerOfNoCopy(change.Pod)
		if owner != nil && owner.Kind == "DaemonSet" && !change.Deleted && change.Pod.DeletionTimestamp == nil {
			nodes = []types.NamespacedName{{Name: change.Pod.Spec.NodeName}}
		}
	case change.Node != nil:
		nodes = []types.NamespacedName{{Name: *change.Node}}
	case change.Surroundings:
		remoteClient, err := r.Clusters.Client(ctx, change.Cluster)
		if err != nil {
			return // the next connection lists all Nodes anew
		}
		evacuations := &v1alpha1.EvacuationList{}
		if err := remoteClient.List(ctx, evacuations, client.UnsafeDisableDeepCopy); err != nil {
			return // likewise
		}
		for i := range evacuations.Items {
			nodes = append(nodes, nodeOf(&evacuations.Items[i])...)
		}
	}
	for _, node := range nodes {
		queue.Add(remote.Request{Cluster: change.Cluster, Object: node})
	}
}
