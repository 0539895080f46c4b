package stage

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machine"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

type watcher = controller.Controller

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	r.recorder = mgr.GetEventRecorderFor("node-maintenance-machine") //nolint:staticcheck // CAPI's own controllers record core events, which kubectl describe shows
	var err error
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named("machinestage").
		For(&clusterv1.Machine{}, builder.WithPredicates(stageChanged{}, predicates.ResourceHasFilterLabel(mgr.GetScheme(), ctrl.LoggerFrom(ctx), r.WatchFilterValue))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.machinesOfCluster), builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.MachineDrainPolicy{}, handler.EnqueueRequestsFromMapFunc(r.machinesAsked), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1.MachineDrainRule{}, handler.EnqueueRequestsFromMapFunc(r.machinesAsked), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Clusters.Source("machinestage", r.machinesOfCluster)).
		WithOptions(options).
		Build(r)
	return errors.Wrap(err, "setting up the machine stage controller")
}

// Watches returns the watch of NodeMaintenances in a workload cluster, for the progress of maintenances.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("machinestage-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{}, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, m *v1alpha1.NodeMaintenance) []reconcile.Request {
			owner, ours := r.Maintenances.Serves(m, cluster)
			if !ours {
				return nil
			}
			return []reconcile.Request{{NamespacedName: owner}}
		})),
	}
}

func (r *Reconciler) machinesOfCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return machine.Requests(ctx, r.Client, nil, client.InNamespace(cluster.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.GetName()})
}

// machinesAsked returns requests for the Machines of a namespace that have the stage annotation.
func (r *Reconciler) machinesAsked(ctx context.Context, object client.Object) []reconcile.Request {
	asked := func(m *clusterv1.Machine) bool { return m.Annotations[v1alpha1.MachineStageAnnotation] != "" }
	return machine.Requests(ctx, r.Client, asked, client.InNamespace(object.GetNamespace()))
}

// stageChanged passes the events of Machines whose annotations, labels or Node have changed.
type stageChanged struct {
	predicate.Funcs
}

// Delete implements predicate.Predicate.
func (stageChanged) Delete(event.DeleteEvent) bool { return false }

// Update implements predicate.Predicate.
func (stageChanged) Update(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*clusterv1.Machine)
	after, alsoOK := e.ObjectNew.(*clusterv1.Machine)
	return !ok || !alsoOK || before.ResourceVersion == after.ResourceVersion || before.Status.NodeRef != after.Status.NodeRef ||
		predicate.AnnotationChangedPredicate{}.Update(e) || predicate.LabelChangedPredicate{}.Update(e)
}
