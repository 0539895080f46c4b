package machinedeployment

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinedeployments,verbs=list;watch

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(_ context.Context, mgr ctrl.Manager, options controller.Options) error {
	var err error
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named("rollout").
		For(&clusterv1.MachineDeployment{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(deploymentOf), builder.WithPredicates(machineChanged{})).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.deploymentsOfCluster), builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.MachineDrainPolicy{}, handler.EnqueueRequestsFromMapFunc(r.deploymentsOfNamespace),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Clusters.Source("rollout", r.deploymentsOfCluster)).
		WithOptions(options).
		Build(workload.RetryConflicts[reconcile.Request](r))
	return errors.Wrap(err, "setting up the rollout controller")
}

// Watches returns the watch of NodeMaintenances in a workload cluster, for those that other actors create, change or delete.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("rollout-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{},
			handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, m *v1alpha1.NodeMaintenance) []reconcile.Request {
				owner, ours := machinedrain.OwnerMachine(m, r.Maintenances.ManagementCluster, cluster)
				if !ours {
					return nil
				}
				machine := &clusterv1.Machine{}
				if err := r.Client.Get(ctx, owner, machine); err != nil {
					if client.IgnoreNotFound(err) != nil {
						ctrl.LoggerFrom(ctx).Error(err, "Failed to get Machine", "Machine", klog.KRef(owner.Namespace, owner.Name))
					}
					return nil
				}
				return deploymentOf(ctx, machine)
			}), predicate.TypedGenerationChangedPredicate[*v1alpha1.NodeMaintenance]{}),
	}
}

// machineChanged drops the updates of Machines that cannot change the decision about a rollout.
type machineChanged struct {
	predicate.Funcs
}

// Update implements predicate.Predicate.
func (machineChanged) Update(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*clusterv1.Machine)
	after, alsoOK := e.ObjectNew.(*clusterv1.Machine)
	if !ok || !alsoOK || before.ResourceVersion == after.ResourceVersion {
		return true
	}
	changed := func(condition string) bool {
		return conditions.GetReason(before, condition) != conditions.GetReason(after, condition)
	}
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || before.Status.NodeRef != after.Status.NodeRef ||
		changed(clusterv1.MachineUpToDateCondition) || changed(clusterv1.MachineAvailableCondition) ||
		predicate.AnnotationChangedPredicate{}.Update(e) || predicate.LabelChangedPredicate{}.Update(e)
}

func deploymentOf(_ context.Context, machine client.Object) []reconcile.Request {
	name := machine.GetLabels()[clusterv1.MachineDeploymentNameLabel]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: machine.GetNamespace(), Name: name}}}
}

func (r *Reconciler) deploymentsOfCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return r.deployments(ctx, client.InNamespace(cluster.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.GetName()})
}

func (r *Reconciler) deploymentsOfNamespace(ctx context.Context, policy client.Object) []reconcile.Request {
	return r.deployments(ctx, client.InNamespace(policy.GetNamespace()))
}

func (r *Reconciler) deployments(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	list := &clusterv1.MachineDeploymentList{}
	if err := r.Client.List(ctx, list, options...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list MachineDeployments")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
