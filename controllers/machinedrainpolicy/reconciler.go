// Package machinedrainpolicy writes the status of MachineDrainPolicies: how many Clusters and Machines each policy selects, how many of
// these Machines are being drained, and which of these drains have been blocked longest.
package machinedrainpolicy

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
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
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=machinedrainpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinepools,verbs=list;watch

// settle is how long the controller collects events of Machines and Clusters before it counts: a rollout changes many of them.
const settle = time.Second

// settleWaits is the same delay for changes of what drains wait for. It is longer, because tenants can change that at any rate.
const settleWaits = 10 * time.Second

// Reconciler writes the status of MachineDrainPolicies.
type Reconciler struct {
	Client   client.Client
	Clusters *workload.Clusters
	Clock    clock.PassiveClock

	events record.EventRecorder
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	r.events = mgr.GetEventRecorderFor("node-maintenance-policy") //nolint:staticcheck // CAPI's own controllers record core events, which kubectl describe shows
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machinedrainpolicy").
		For(&v1alpha1.MachineDrainPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineDrainPolicy{}, statusChanged()).
		Watches(&clusterv1.Machine{}, r.policiesOfNamespace()).
		Watches(&clusterv1.Cluster{}, r.policiesOfNamespace()).
		Watches(&clusterv1.MachinePool{}, r.policiesOfNamespace()).
		WithOptions(options).
		Complete(r)
	return errors.Wrap(err, "setting up the machine drain policy controller")
}

// statusChanged enqueues a policy whose status has changed, after a delay: the writes of this controller are such changes, too, and what
// drains wait for may have changed again meanwhile.
func statusChanged() handler.EventHandler {
	return handler.Funcs{
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.ObjectNew)}, settleWaits)
		},
	}
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

// countsMayChange reports whether another policy may select the Machine or Cluster than before, or whether its drain may have started or
// ended.
func countsMayChange(before, after client.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion() || // a resync
		!before.GetDeletionTimestamp().Equal(after.GetDeletionTimestamp()) ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) ||
		before.GetAnnotations()[v1alpha1.PreDrainHookAnnotation] != after.GetAnnotations()[v1alpha1.PreDrainHookAnnotation] ||
		hasNodes(before) != hasNodes(after)
}

// hasNodes reports whether an object is a MachinePool with Nodes.
func hasNodes(object client.Object) bool {
	pool, ok := object.(*clusterv1.MachinePool)
	return ok && len(pool.Status.NodeRefs) > 0
}

// waitsMayChange reports whether the Machine's condition has changed, which follows what its drain waits for.
func waitsMayChange(before, after client.Object) bool {
	old, ok := before.(*clusterv1.Machine)
	updated, alsoOK := after.(*clusterv1.Machine)
	return ok && alsoOK &&
		!apiequality.Semantic.DeepEqual(conditions.Get(old, v1alpha1.MachineNodeMaintenance), conditions.Get(updated, v1alpha1.MachineNodeMaintenance))
}

// Reconcile counts the Clusters, Machines and drains of a policy, and lists the drains that have been blocked longest.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	policy := &v1alpha1.MachineDrainPolicy{}
	if err := r.Client.Get(ctx, request.NamespacedName, policy); err != nil {
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "getting MachineDrainPolicy %s", request.NamespacedName)
	}
	inNamespace := client.InNamespace(request.Namespace)
	policies, all, pools, clusters := &v1alpha1.MachineDrainPolicyList{}, &clusterv1.MachineList{}, &clusterv1.MachinePoolList{}, &clusterv1.ClusterList{}
	for _, list := range []client.ObjectList{policies, all, pools, clusters} {
		if err := r.Client.List(ctx, list, inNamespace, client.UnsafeDisableDeepCopy); err != nil { // the objects are not modified, and may be many
			return reconcile.Result{}, errors.Wrapf(err, "listing the objects that MachineDrainPolicy %s selects", request.NamespacedName)
		}
	}
	labels := map[string]map[string]string{}
	for i := range clusters.Items {
		labels[clusters.Items[i].Name] = clusters.Items[i].Labels
	}
	tally := machinedrain.TallyOf(policy, policies.Items, all.Items, labels)
	changed := policy.DeepCopy()
	changed.Status.ObservedGeneration = policy.Generation
	changed.Status.Clusters, changed.Status.Machines = tally.Clusters, tally.Machines
	changed.Status.ActiveDrains = int32(len(tally.Draining)) //nolint:gosec // bounded by the number of Machines
	r.setCondition(changed, v1alpha1.MachineDrainPolicyMachinePoolsManaged, machinedrain.PoolsCondition(policy, pools.Items, all.Items, labels))
	r.setCondition(changed, v1alpha1.MachineDrainPolicySelectorsValid, machinedrain.SelectorsCondition(policy))
	r.setCondition(changed, v1alpha1.MachineDrainPolicyStalled, machinedrain.StalledCondition(policy))
	var result reconcile.Result
	changed.Status.LongestWaits, result = r.longestWaits(ctx, tally.Draining, policy.Status.LongestWaits)
	if apiequality.Semantic.DeepEqual(policy.Status, changed.Status) {
		return result, nil
	}
	if err := r.Client.Status().Patch(ctx, changed, client.MergeFrom(policy)); err != nil {
		return result, errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching the status of MachineDrainPolicy %s", request.NamespacedName)
	}
	before, after := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.MachineDrainPolicySelectorsValid),
		meta.FindStatusCondition(changed.Status.Conditions, v1alpha1.MachineDrainPolicySelectorsValid)
	if after != nil && (before == nil || before.Message != after.Message) {
		r.events.Event(policy, corev1.EventTypeWarning, v1alpha1.ReasonInvalidSelector, after.Message)
	}
	return result, nil
}

// setCondition sets a condition of a policy, or removes it if it is nil.
func (r *Reconciler) setCondition(policy *v1alpha1.MachineDrainPolicy, conditionType string, condition *metav1.Condition) {
	if condition == nil {
		meta.RemoveStatusCondition(&policy.Status.Conditions, conditionType)
		return
	}
	condition.LastTransitionTime = metav1.NewTime(r.Clock.Now().Truncate(time.Second))
	meta.SetStatusCondition(&policy.Status.Conditions, *condition)
}

// longestWaits returns the drains that have been blocked longest. draining are the Machines, the oldest deletion first. While a workload
// cluster cannot be read, it keeps the present waits of the Cluster's Machines, and retries.
func (r *Reconciler) longestWaits(ctx context.Context, draining []*clusterv1.Machine,
	present []v1alpha1.DrainWait,
) (waits []v1alpha1.DrainWait, result reconcile.Result) {
	for _, machine := range draining {
		if len(waits) == machinedrain.MaxWaits {
			break
		}
		blockers, err := r.blockers(ctx, machine)
		if err != nil {
			if !workload.IsPaused(err) && !workload.IsNotConnected(err) {
				ctrl.LoggerFrom(ctx).Error(err, "Failed to find out what blocks a drain", "Machine", klog.KObj(machine))
			}
			result.RequeueAfter = settleWaits
			if at := slices.IndexFunc(present, func(wait v1alpha1.DrainWait) bool { return wait.Machine == machine.Name }); at >= 0 {
				waits = append(waits, present[at])
			}
			continue
		}
		if wait := machinedrain.WaitOf(machine, blockers); wait != nil {
			waits = append(waits, *wait)
		}
	}
	return waits, result
}

// blockers returns what blocks the drain of a Machine, as its NodeMaintenance reports it.
func (r *Reconciler) blockers(ctx context.Context, machine *clusterv1.Machine) ([]string, error) {
	if !machinedrain.NeedsBlockers(machine) {
		return nil, nil
	}
	cluster := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}
	remote, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil, err
	}
	found, _, err := machinemaintenance.Find(ctx, remote, cluster, machine)
	if err != nil || found.Maintenance == nil {
		return nil, err
	}
	failure := r.Clusters.Failures.Get(workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(found.Maintenance)})
	if !failure.Persists(r.Clock.Now()) {
		failure.Err = nil
	}
	return machinedrain.Blockers(found.Maintenance, failure.Err), nil
}
