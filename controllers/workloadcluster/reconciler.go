// Package workloadcluster prepares workload clusters: it installs the bundle (CRDs, admission policies and roles) and the node agent, and then
// adds the watches of all controllers to the connection.
package workloadcluster

import (
	"context"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// eventAdmissionPoliciesMissing is the reason of the event on a Cluster whose workload cluster does not support some of the admission
// policies, or has disabled them.
const eventAdmissionPoliciesMissing = "AdmissionPoliciesMissing"

// Reconciler prepares each workload cluster that a MachineDrainPolicy selects, once for each connection.
type Reconciler struct {
	Client           client.Client
	Clusters         *workload.Clusters
	Watches          []workload.Watches
	WatchFilterValue string
	// NodeAgentImage is the image of the node agent. If it is empty, the node agent is never installed.
	NodeAgentImage string

	recorder record.EventRecorder
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	r.recorder = mgr.GetEventRecorderFor("node-maintenance-cluster") //nolint:staticcheck // CAPI's own controllers record core events, which kubectl describe shows
	clusters := func(_ context.Context, cluster client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(cluster)}}
	}
	selectionMayChange := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	err := ctrl.NewControllerManagedBy(mgr).
		Named("workloadcluster").
		For(&clusterv1.Cluster{}, builder.WithPredicates(selectionMayChange, predicates.ResourceHasFilterLabel(mgr.GetScheme(), ctrl.LoggerFrom(ctx), r.WatchFilterValue))).
		Watches(&clusterv1.Cluster{}, r.Clusters.ResumeAfterPause()).
		Watches(&clusterv1.Machine{}, r.Clusters.ResumeAfterPause()).
		Watches(&v1alpha1.MachineDrainPolicy{}, handler.EnqueueRequestsFromMapFunc(r.clustersOfNamespace), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Clusters.Source("workloadcluster", clusters)).
		WithOptions(options).
		Complete(r)
	return errors.Wrap(err, "setting up the workload cluster controller")
}

func (r *Reconciler) clustersOfNamespace(ctx context.Context, policy client.Object) []reconcile.Request {
	clusters := &clusterv1.ClusterList{}
	if err := r.Client.List(ctx, clusters, client.InNamespace(policy.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the Clusters of a MachineDrainPolicy's namespace")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(clusters.Items))
	for i := range clusters.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&clusters.Items[i])})
	}
	return requests
}

// Reconcile prepares one workload cluster:
//
//	is it selected? ─► is it connected? ─► apply the bundle and the node agent ─► add the watches of the controllers
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cluster, err := r.ours(ctx, req.NamespacedName)
	if err != nil || cluster == nil {
		return reconcile.Result{}, err
	}
	live, err := r.Clusters.UncachedClient(ctx, req.NamespacedName)
	if err != nil {
		if workload.IsNotConnected(err) { // the next connection triggers a reconciliation
			r.Clusters.Disconnect(req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	applied, err := ApplyBundle(ctx, live)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !applied.Established {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	r.tellMissing(ctx, cluster, applied.Missing)
	if err := r.bringNodeAgent(ctx, live, cluster); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.Clusters.Connected(ctx, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	return workload.Result(r.Clusters.AddWatches(ctx, req.NamespacedName, r.Watches))
}

// tellMissing records an event on the Cluster about admission policies that the workload cluster does not serve. An older Kubernetes does
// not prevent drains, but its administrators must restrict who may write NodeMaintenances and Evacuations.
func (r *Reconciler) tellMissing(ctx context.Context, cluster *clusterv1.Cluster, missing []string) {
	if len(missing) == 0 {
		return
	}
	ctrl.LoggerFrom(ctx).Info("The workload cluster doesn't take the admission policies", "missing", missing)
	r.recorder.Eventf(cluster, corev1.EventTypeWarning, eventAdmissionPoliciesMissing,
		"The workload cluster doesn't take these, so that whoever may write NodeMaintenances and Evacuations there can drain its Nodes: %s", strings.Join(missing, ", "))
}

// ours returns the Cluster if a MachineDrainPolicy selects it or one of its Machines is being drained, else nil. It returns nil if the
// Cluster does not exist or is paused.
func (r *Reconciler) ours(ctx context.Context, key types.NamespacedName) (*clusterv1.Cluster, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			r.Clusters.Disconnect(key)
			return nil, nil
		}
		return nil, errors.Wrapf(err, "getting Cluster %s", key)
	}
	if annotations.IsPaused(cluster, cluster) {
		return nil, nil
	}
	policies := &v1alpha1.MachineDrainPolicyList{}
	if err := r.Client.List(ctx, policies, client.InNamespace(key.Namespace)); err != nil {
		return nil, errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", key.Namespace)
	}
	for i := range policies.Items {
		if machinedrain.PolicySelectsCluster(&policies.Items[i], cluster.Labels) {
			return cluster, nil
		}
	}
	if drains, err := r.drains(ctx, key); err != nil || !drains {
		return nil, err
	}
	return cluster, nil
}

// drains returns whether a Machine of the Cluster is being drained. Such a drain continues even if its policy has been deleted.
func (r *Reconciler) drains(ctx context.Context, cluster types.NamespacedName) (bool, error) {
	list := &clusterv1.MachineList{}
	err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}, client.UnsafeDisableDeepCopy)
	for i := range list.Items {
		if machinedrain.IsDraining(&list.Items[i]) {
			return true, nil
		}
	}
	return false, errors.Wrapf(err, "listing the Machines of Cluster %s", cluster)
}
