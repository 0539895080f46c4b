package nodemaintenance

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
)

// Sweeper cleans up what NodeMaintenances that no longer exist have left behind on Nodes, whenever the watch of Nodes starts: see package
// drain/orphan. The DaemonSet evacuator removes its taint itself.
type Sweeper struct {
	Clusters *workload.Clusters
	// Machines reads the management cluster's Machines.
	Machines client.Reader

	controller controller.TypedController[workload.Request]
}

// SetupWithManager adds the sweeper to the manager.
func (r *Sweeper) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	options.Reconciler = workload.RetryConflicts[workload.Request](r)
	var err error
	r.controller, err = controller.NewTyped("sweeper", mgr, options)
	return errors.Wrap(err, "setting up the sweeper")
}

// Watches returns watches that enqueue the Nodes of a workload cluster that have traces of NodeMaintenances, and every Node that an Evacuation
// names, from the initial lists. Nodes are listed when FindLeftovers has found such a Node, and before each drain of an idle workload cluster.
func (r *Sweeper) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("sweeper-Nodes", r.controller, &corev1.Node{}, listed(cluster, func(node *corev1.Node) string {
			if !orphan.Possible(node) {
				return ""
			}
			return node.Name
		})),
		workload.Watch("sweeper-Evacuations", r.controller, &v1alpha1.Evacuation{}, listed(cluster, func(e *v1alpha1.Evacuation) string {
			return e.Annotations[v1alpha1.EvacuationNodeAnnotation]
		})),
	}
}

// listed enqueues the Nodes of the objects in the initial list of a watch.
func listed[T client.Object](cluster types.NamespacedName, node func(T) string) handler.TypedEventHandler[T, workload.Request] {
	return handler.TypedFuncs[T, workload.Request]{CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], queue workload.Queue) {
		if name := node(e.Object); e.IsInInitialList && name != "" {
			queue.Add(workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: name}})
		}
	}}
}

// Reconcile cleans up one Node:
//
//	find leftovers in the caches ─► confirm them with the NodeMaintenances from the API server ─► clean up
func (r *Sweeper) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name), "Node", klog.KRef("", request.Object.Name)))
	cached, err := r.Clusters.Client(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	observed, err := observeLeftovers(ctx, cached, cached, request.Object.Name)
	if err != nil || orphan.Find(observed).Empty() {
		return workload.Result(err)
	}
	// The cache may not contain the newest NodeMaintenances.
	live, err := r.Clusters.UncachedClient(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	if observed, err = observeLeftovers(ctx, cached, live, request.Object.Name); err != nil {
		return workload.Result(err)
	}
	if observed.Machine, err = r.machineOf(ctx, request); err != nil {
		return reconcile.Result{}, err
	}
	return workload.Result(r.sweep(ctx, cached, observed.Node, orphan.Find(observed)))
}

func (r *Sweeper) machineOf(ctx context.Context, node workload.Request) (*clusterv1.Machine, error) {
	machines := &clusterv1.MachineList{}
	if err := r.Machines.List(ctx, machines, client.InNamespace(node.Cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: node.Cluster.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrapf(err, "listing the Machines of Cluster %s", node.Cluster)
	}
	for i := range machines.Items {
		if machines.Items[i].Status.NodeRef.Name == node.Object.Name {
			return &machines.Items[i], nil
		}
	}
	return nil, nil
}

// observeLeftovers reads a Node and its Evacuations from the cache, and then lists the NodeMaintenances. In this order, the list contains
// the NodeMaintenances that the Node and the Evacuations belong to.
func observeLeftovers(ctx context.Context, cached, maintenances client.Reader, name string) (orphan.Observation, error) {
	observed := orphan.Observation{Name: name, Node: &corev1.Node{}}
	switch err := cached.Get(ctx, types.NamespacedName{Name: name}, observed.Node); {
	case client.IgnoreNotFound(err) != nil:
		return observed, errors.Wrapf(err, "getting Node %s", name)
	case err != nil:
		observed.Node = nil
	}
	var err error
	if observed.Evacuations, err = evacuationsOn(ctx, cached, name); err != nil {
		return observed, err
	}
	all := &v1alpha1.NodeMaintenanceList{}
	err = maintenances.List(ctx, all, client.UnsafeDisableDeepCopy) // read-only, and possibly large
	observed.Maintenances = all.Items
	return observed, errors.Wrap(err, "listing NodeMaintenances")
}

// sweep withdraws from Evacuations, removes conditions and restores the Node, as the leftovers require.
func (r *Sweeper) sweep(ctx context.Context, c client.Client, node *corev1.Node, left orphan.Orphans) error {
	for _, e := range left.Evacuations {
		if err := setInstigator(ctx, c, e, evacuation.Withdraw); err != nil {
			return err
		}
	}
	if len(left.Conditions) > 0 {
		if _, err := patchConditions(ctx, c, node, nil, left.Conditions); err != nil {
			return err
		}
	}
	if left.Record {
		changed := node.DeepCopy()
		cordon.Restore(changed)
		cordon.Include(changed)
		if err := workload.PatchNode(ctx, c, node, changed); err != nil {
			return errors.Wrapf(client.IgnoreNotFound(err), "restoring Node %s", node.Name)
		}
	}
	if !left.Empty() {
		ctrl.LoggerFrom(ctx).Info("Cleaned up what deleted NodeMaintenances have left behind",
			"record", left.Record, "conditions", left.Conditions, "evacuations", len(left.Evacuations))
	}
	return nil
}
