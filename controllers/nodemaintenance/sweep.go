package nodemaintenance

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/jsonpatch"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/orphan"
)

// sweepRetry is the interval at which a Node is reconciled again while its NodeMaintenance is expected to be recreated, or its Machine is
// paused.
const sweepRetry = 10 * time.Second

// Sweeper cleans up what NodeMaintenances that no longer exist have left behind on Nodes: see package drain/orphan. It looks for that when
// the watch of Nodes starts, when a NodeMaintenance no longer exists, when a Node gets traces of one, and when an Evacuation is observed
// that NodeMaintenances request. The DaemonSet evacuator removes its taint itself.
type Sweeper struct {
	Clusters *workload.Clusters
	Clock    clock.PassiveClock
	// Machines reads the management cluster's Machines.
	Machines     client.Reader
	Maintenances *machinemaintenance.Requester

	controller controller.TypedController[workload.Request]
}

// SetupWithManager adds the sweeper to the manager.
func (r *Sweeper) SetupWithManager(mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	options.Reconciler = workload.RetryConflicts[workload.Request](r)
	var err error
	r.controller, err = controller.NewTyped("sweeper", mgr, options)
	return errors.Wrap(err, "setting up the sweeper")
}

// Watches returns watches that enqueue the Nodes of a workload cluster that may have traces of NodeMaintenances which no longer exist.
// Nodes are listed when FindLeftovers has found such a Node, and before each drain of an idle workload cluster.
func (r *Sweeper) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	enqueue := func(queue workload.Queue, node string) {
		if node != "" {
			queue.Add(workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: node}})
		}
	}
	enqueueNodesOf := func(ctx context.Context, gone *v1alpha1.NodeMaintenance, queue workload.Queue) {
		for _, node := range r.nodesOf(ctx, cluster, gone) {
			enqueue(queue, node)
		}
	}
	return []clustercache.Watcher{
		workload.Watch("sweeper-Nodes", r.controller, &corev1.Node{}, handler.TypedFuncs[*corev1.Node, workload.Request]{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*corev1.Node], queue workload.Queue) {
				if e.IsInInitialList && orphan.Possible(e.Object) {
					enqueue(queue, e.Object.Name)
				}
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Node], queue workload.Queue) {
				if orphan.Appeared(e.ObjectOld, e.ObjectNew) {
					enqueue(queue, e.ObjectNew.Name)
				}
			},
		}),
		workload.Watch("sweeper-Evacuations", r.controller, &v1alpha1.Evacuation{}, handler.TypedFuncs[*v1alpha1.Evacuation, workload.Request]{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.Evacuation], queue workload.Queue) {
				enqueue(queue, requestedNode(e.Object))
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.Evacuation], queue workload.Queue) {
				if node := requestedNode(e.ObjectNew); node != requestedNode(e.ObjectOld) || e.ObjectNew.UID != e.ObjectOld.UID {
					enqueue(queue, node)
				}
			},
		}),
		workload.Watch("sweeper-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{}, handler.TypedFuncs[*v1alpha1.NodeMaintenance, workload.Request]{
			UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*v1alpha1.NodeMaintenance], queue workload.Queue) {
				if e.ObjectNew.UID != e.ObjectOld.UID { // it was deleted, and another one was created, while the watch was interrupted
					enqueueNodesOf(ctx, e.ObjectOld, queue)
				}
			},
			DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*v1alpha1.NodeMaintenance], queue workload.Queue) {
				enqueueNodesOf(ctx, e.Object, queue)
			},
		}),
	}
}

// requestedNode returns the Node of an Evacuation that NodeMaintenances request, or "".
func requestedNode(e *v1alpha1.Evacuation) string {
	if !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		return ""
	}
	return e.Annotations[v1alpha1.EvacuationNodeAnnotation]
}

// nodesOf returns the Nodes that a deleted NodeMaintenance has selected. It returns none for one that serves a Machine of another
// management cluster: the manager there recreates it.
func (r *Sweeper) nodesOf(ctx context.Context, cluster types.NamespacedName, m *v1alpha1.NodeMaintenance) []string {
	if _, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]; serves && !machinedrain.IsOfManagementCluster(m, r.Maintenances.ManagementCluster) {
		return nil
	}
	known := nodeselection.KnownNodes(m)
	if _, byName := nodeselection.Names(m); byName {
		return known
	}
	cached, err := r.Clusters.Client(ctx, cluster)
	if err != nil || !workload.ObservesNodes(cached) {
		return known // the first list of Nodes enqueues all with traces
	}
	nodes, err := selectedNodes(ctx, cached, m)
	if err != nil {
		logMapError(ctx, err, cluster)
	}
	return append(known, nodeNames(nodes)...)
}

// Reconcile cleans up one Node:
//
//	find leftovers in the caches ─► confirm them with the NodeMaintenances from the API server ─► clean up
//
// While the NodeMaintenance of the Node's Machine is expected to be recreated, it waits with what that one will adopt. While a
// NodeMaintenance cannot be decoded, it waits with everything.
func (r *Sweeper) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"Node", klog.KRef("", request.Object.Name)))
	cached, err := r.Clusters.Client(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	observed, err := observeOwners(ctx, cached, request.Object.Name)
	if err != nil || observed.HasOwners() {
		return workload.Result(err)
	}
	if observed, err = observeLeftovers(ctx, cached, cached, request.Object.Name); err != nil || orphan.Find(observed).Empty() {
		return workload.Result(err)
	}
	if len(r.Clusters.SetAside(request.Cluster, "NodeMaintenance")) > 0 { // it may be responsible for the Node
		return reconcile.Result{RequeueAfter: unreadRetry}, nil
	}
	if err := r.observeMachine(ctx, request, &observed); err != nil {
		return reconcile.Result{}, err
	}
	result := reconcile.Result{}
	if observed.IsAwaited() {
		result.RequeueAfter = sweepRetry
	}
	if orphan.Find(observed).Empty() {
		return result, nil
	}
	// The cache may not contain the newest NodeMaintenances.
	live, err := r.Clusters.UncachedClient(ctx, request.Cluster)
	if err != nil {
		return workload.Result(err)
	}
	confirmed, err := observeLeftovers(ctx, cached, live, request.Object.Name)
	if err != nil {
		return workload.Result(err)
	}
	confirmed.Machine, confirmed.Wanted = observed.Machine, observed.Wanted
	if err := r.sweep(ctx, cached, confirmed.Node, orphan.Find(confirmed)); err != nil {
		return workload.Result(err)
	}
	return result, nil
}

// observeOwners reads a Node and the NodeMaintenances that concern it from the cache.
func observeOwners(ctx context.Context, cached client.Reader, name string) (orphan.Observation, error) {
	node, err := workload.NodeNamed(ctx, cached, name)
	if err != nil {
		return orphan.Observation{}, err
	}
	maintenances, err := workload.MaintenancesOf(ctx, cached, name)
	return orphan.Observation{Name: name, Node: node, Maintenances: maintenances}, err
}

// observeMachine finds the Machine of a Node, and the NodeMaintenance that is wanted for it.
func (r *Sweeper) observeMachine(ctx context.Context, request workload.Request, observed *orphan.Observation) (err error) {
	machines := &clusterv1.MachineList{}
	if err := r.Machines.List(ctx, machines, client.InNamespace(request.Cluster.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: request.Cluster.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return errors.Wrapf(err, "listing the Machines of Cluster %s", request.Cluster)
	}
	if observed.Machine = orphan.MachineOf(machines.Items, observed.Name, observed.Node); observed.Machine == nil {
		return nil
	}
	observed.Wanted, err = r.Maintenances.Wanted(ctx, observed.Machine, r.Clock.Now())
	return err
}

// observeLeftovers reads a Node and its Evacuations from the cache, and then lists the NodeMaintenances. In this order, the list contains
// the NodeMaintenances that the Node and the Evacuations belong to.
func observeLeftovers(ctx context.Context, cached, maintenances client.Reader, name string) (orphan.Observation, error) {
	node, err := workload.NodeNamed(ctx, cached, name)
	if err != nil {
		return orphan.Observation{}, err
	}
	observed := orphan.Observation{Name: name, Node: node}
	if observed.Evacuations, err = evacuationsOn(ctx, cached, name); err != nil {
		return observed, err
	}
	all := &v1alpha1.NodeMaintenanceList{}
	err = maintenances.List(ctx, all, client.UnsafeDisableDeepCopy) // read-only, and possibly large
	observed.Maintenances = all.Items
	return observed, errors.Wrap(err, "listing NodeMaintenances")
}

// sweep restores the Node, removes conditions and withdraws from Evacuations, as the leftovers require. The withdrawals, which may take
// minutes, are last: another NodeMaintenance may cordon the Node by then. A write that fails does not prevent the others, except for those
// to the other Evacuations of a Namespace that hangs, see isHanging. sweep returns the first error.
func (r *Sweeper) sweep(ctx context.Context, c client.Client, node *corev1.Node, left orphan.Orphans) error {
	var first error
	if left.Record {
		changed := node.DeepCopy()
		cordon.Restore(changed)
		cordon.Include(changed)
		err := jsonpatch.Node(ctx, c, node, changed)
		first = errors.Wrapf(answers.IgnoreDoesNotExist(err), "restoring Node %s", node.Name)
	}
	if len(left.Conditions) > 0 {
		_, err := patchConditions(ctx, c, node, nil, left.Conditions)
		first = cmp.Or(first, err)
	}
	hanging := sets.New[string]()
	for _, e := range left.Evacuations {
		if hanging.Has(e.Namespace) {
			continue
		}
		began := r.Clock.Now()
		err := setInstigator(ctx, c, e, evacuation.Withdraw)
		if err != nil && isHanging(err, r.Clock.Since(began)) {
			hanging.Insert(e.Namespace)
		}
		first = cmp.Or(first, err)
	}
	if !left.Empty() && first == nil {
		ctrl.LoggerFrom(ctx).Info("Cleaned up what deleted NodeMaintenances have left behind",
			"record", left.Record, "conditions", left.Conditions, "evacuations", len(left.Evacuations))
	}
	return first
}
