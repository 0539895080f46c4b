package machine

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Watches returns the watches of a workload cluster: NodeMaintenances for the progress of drains, and Nodes for their attached volumes.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("machine-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{},
			handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, m *v1alpha1.NodeMaintenance) []reconcile.Request {
				machine, ok := machinedrain.OwnerMachineOfAnyManager(m, cluster)
				if !ok {
					return nil
				}
				return []reconcile.Request{{NamespacedName: machine}}
			})),
		workload.Watch("machine-Nodes", r.controller, &corev1.Node{},
			handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, node *corev1.Node) []reconcile.Request {
				return r.drainingMachinesOn(ctx, cluster, node.Name)
			}), workload.Changed(mayEndVolumeWait)),
	}
}

// mayEndVolumeWait reports whether a change of a Node may end a wait for volumes.
func mayEndVolumeWait(before, after *corev1.Node) bool {
	if before == nil || after == nil {
		return after == nil
	}
	return rules.Unreachable(before) != rules.Unreachable(after) ||
		!apiequality.Semantic.DeepEqual(before.Status.VolumesAttached, after.Status.VolumesAttached)
}

// watchChanges enqueues the Machines that a Change affects.
func (r *Reconciler) watchChanges(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Clusters.Subscribe(func(change workload.Change) {
		for _, request := range r.machinesAffectedBy(ctx, change) {
			queue.Add(request)
		}
	})
	return nil
}

// machinesAffectedBy returns the draining Machine of a Node whose volumes have changed. When the watches of a new connection were added, it
// returns the Machines that may have a NodeMaintenance, since a deletion of one just before caused no event.
func (r *Reconciler) machinesAffectedBy(ctx context.Context, change workload.Change) []reconcile.Request {
	switch change.Type {
	case workload.VolumesChanged:
		return r.drainingMachinesOn(ctx, change.Cluster, change.Node)
	case workload.DrainConfirmed:
		return r.requests(ctx, func(m *clusterv1.Machine) bool { return mayHaveMaintenance(m) && m.Status.NodeRef.Name == change.Node },
			client.InNamespace(change.Cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: change.Cluster.Name})
	case workload.WatchesAdded:
		return r.requests(ctx, mayHaveMaintenance, client.InNamespace(change.Cluster.Namespace), client.MatchingLabels{
			clusterv1.ClusterNameLabel: change.Cluster.Name,
		})
	default:
		return nil
	}
}

// keepQueue stores the work queue, so that a Machine whose deadline precedes the end of its backoff can be reconciled in time.
func (r *Reconciler) keepQueue(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.retryAfter = func(machine types.NamespacedName, after time.Duration) {
		queue.AddAfter(reconcile.Request{NamespacedName: machine}, after)
	}
	return nil
}

// drainingMachinesOn returns a request for the Machine of a Node if the Machine is draining.
func (r *Reconciler) drainingMachinesOn(ctx context.Context, cluster types.NamespacedName, node string) []reconcile.Request {
	return r.requests(ctx, func(m *clusterv1.Machine) bool { return machinedrain.IsDraining(m) && m.Status.NodeRef.Name == node },
		client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
}

// machinesOfCluster returns requests for the Machines of a Cluster. It suspends their drains if the Cluster is paused, see suspendDrain.
func (r *Reconciler) machinesOfCluster(ctx context.Context, object client.Object) []reconcile.Request {
	requests := r.requests(ctx, nil, client.InNamespace(object.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: object.GetName()})
	if cluster, is := object.(*clusterv1.Cluster); is && machinedrain.IsClusterPaused(cluster) {
		for _, request := range requests {
			r.Maintenances.Suspend(request.NamespacedName, r.Clock.Now())
		}
	}
	return requests
}

// suspendDrain suspends the drain of a Machine when a pause or a hold begins, since that may end before the Machine is reconciled. The
// Machine is reconciled afterwards, because a reconciliation in progress can no longer continue the drain.
func (r *Reconciler) suspendDrain() handler.EventHandler {
	return handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		before, wasMachine := e.ObjectOld.(*clusterv1.Machine)
		after, isMachine := e.ObjectNew.(*clusterv1.Machine)
		if wasMachine && isMachine && machinedrain.DrainStops(before, after) {
			machine := client.ObjectKeyFromObject(after)
			r.Maintenances.Suspend(machine, r.Clock.Now())
			queue.Add(reconcile.Request{NamespacedName: machine})
		}
	}}
}

func (r *Reconciler) machinesOfNamespace(ctx context.Context, policy client.Object) []reconcile.Request {
	return r.requests(ctx, nil, client.InNamespace(policy.GetNamespace()))
}

// machinesWithRules returns requests for the Machines of a namespace whose NodeMaintenances contain MachineDrainRules.
func (r *Reconciler) machinesWithRules(ctx context.Context, rule client.Object) []reconcile.Request {
	return r.requests(ctx, mayHaveMaintenance, client.InNamespace(rule.GetNamespace()))
}

func mayHaveMaintenance(m *clusterv1.Machine) bool {
	return machinedrain.IsDraining(m) || machinedrain.MayBeMaintained(m)
}

// requests returns requests for the listed Machines that meet a condition. A nil condition selects all.
func (r *Reconciler) requests(ctx context.Context, condition func(*clusterv1.Machine) bool, options ...client.ListOption) []reconcile.Request {
	list := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list Machines")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if condition == nil || condition(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// machineChanged passes the events of Machines that can change the result of a reconciliation. Most writes to a Machine's status cannot,
// including those of this controller.
type machineChanged struct {
	predicate.Funcs
}

// Update implements predicate.Predicate.
func (machineChanged) Update(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*clusterv1.Machine)
	after, alsoOK := e.ObjectNew.(*clusterv1.Machine)
	if !ok || !alsoOK {
		return true
	}
	return before.ResourceVersion == after.ResourceVersion || // a resync
		before.Generation != after.Generation ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		!apiequality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		!apiequality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
		before.Status.NodeRef != after.Status.NodeRef ||
		isHandedOver(before) != isHandedOver(after) || // the other manager has begun, or a restarted one has overwritten its condition
		!apiequality.Semantic.DeepEqual(before.Status.Deletion, after.Status.Deletion)
}

// isHandedOver reports whether a Machine waits for another manager, see handOver.
func isHandedOver(m *clusterv1.Machine) bool {
	return conditions.GetReason(m, v1alpha1.MachineNodeMaintenance) == v1alpha1.ReasonHandedOver
}
