// Package machinedrainpolicy writes the status of MachineDrainPolicies: how many Clusters and Machines each policy selects, how many of these
// Machines are being drained, and which of these drains have waited longest.
package machinedrainpolicy

import (
	"context"
	"maps"
	"time"

	"github.com/pkg/errors"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=machinedrainpolicies/status,verbs=patch

// settle is how long the controller collects events of Machines and Clusters before it counts: a rollout changes many of them.
const settle = time.Second

// settleWaits is the same delay for changes of what drains wait for. It is longer, because tenants can change that at any rate.
const settleWaits = 10 * time.Second

// Reconciler writes the status of MachineDrainPolicies.
type Reconciler struct {
	Client client.Client
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machinedrainpolicy").
		For(&v1alpha1.MachineDrainPolicy{}).
		Watches(&clusterv1.Machine{}, r.policiesOfNamespace()).
		Watches(&clusterv1.Cluster{}, r.policiesOfNamespace()).
		WithOptions(options).
		Complete(r)
	return errors.Wrap(err, "setting up the machine drain policy controller")
}

// policiesOfNamespace enqueues all MachineDrainPolicies of an object's namespace after a delay.
func (r *Reconciler) policiesOfNamespace() handler.EventHandler {
	enqueue := func(ctx context.Context, object client.Object, after time.Duration, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		policies := &v1alpha1.MachineDrainPolicyList{}
		if err := r.Client.List(ctx, policies, client.InNamespace(object.GetNamespace())); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to list MachineDrainPolicies")
			return
		}
		for i := range policies.Items {
			queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&policies.Items[i])}, after)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, settle, queue)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			switch {
			case countsMayChange(e.ObjectOld, e.ObjectNew):
				enqueue(ctx, e.ObjectNew, settle, queue)
			case waitsMayChange(e.ObjectOld, e.ObjectNew):
				enqueue(ctx, e.ObjectNew, settleWaits, queue)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, settle, queue)
		},
	}
}

// countsMayChange returns whether another policy may select the Machine or Cluster than before, or whether its drain may have started or
// ended.
func countsMayChange(before, after client.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion() || // a resync
		!before.GetDeletionTimestamp().Equal(after.GetDeletionTimestamp()) ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) ||
		before.GetAnnotations()[v1alpha1.PreDrainHookAnnotation] != after.GetAnnotations()[v1alpha1.PreDrainHookAnnotation]
}

// waitsMayChange returns whether the Machine's condition has changed, which says what its drain waits for.
func waitsMayChange(before, after client.Object) bool {
	old, ok := before.(*clusterv1.Machine)
	updated, alsoOK := after.(*clusterv1.Machine)
	return ok && alsoOK &&
		!apiequality.Semantic.DeepEqual(conditions.Get(old, v1alpha1.MachineNodeMaintenance), conditions.Get(updated, v1alpha1.MachineNodeMaintenance))
}

// Reconcile counts the Clusters, Machines and drains of a policy, and lists the drains that have waited longest.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	policy := &v1alpha1.MachineDrainPolicy{}
	if err := r.Client.Get(ctx, request.NamespacedName, policy); err != nil {
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "getting MachineDrainPolicy %s", request.NamespacedName)
	}
	inNamespace := client.InNamespace(request.Namespace)
	policies, all, clusters := &v1alpha1.MachineDrainPolicyList{}, &clusterv1.MachineList{}, &clusterv1.ClusterList{}
	for _, list := range []client.ObjectList{policies, all, clusters} {
		if err := r.Client.List(ctx, list, inNamespace, client.UnsafeDisableDeepCopy); err != nil { // the objects are not modified, and may be many
			return reconcile.Result{}, errors.Wrapf(err, "counting what follows MachineDrainPolicy %s", request.NamespacedName)
		}
	}
	labels := map[string]map[string]string{}
	for i := range clusters.Items {
		labels[clusters.Items[i].Name] = clusters.Items[i].Labels
	}
	tally := machinedrain.TallyOf(policy, policies.Items, all.Items, labels)
	changed := policy.DeepCopy()
	changed.Status.ObservedGeneration = policy.Generation
	changed.Status.Clusters, changed.Status.Machines, changed.Status.ActiveDrains = tally.Clusters, tally.Machines, tally.ActiveDrains
	changed.Status.LongestWaits = tally.LongestWaits
	if apiequality.Semantic.DeepEqual(policy.Status, changed.Status) {
		return reconcile.Result{}, nil
	}
	err := r.Client.Status().Patch(ctx, changed, client.MergeFrom(policy))
	return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "patching the status of MachineDrainPolicy %s", request.NamespacedName)
}
