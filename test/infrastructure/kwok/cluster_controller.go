package kwok

import (
	"context"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// clusterReconciler provides the workload cluster's endpoint and kubeconfig to Cluster API.
type clusterReconciler struct {
	client.Client
	workload func(client.ObjectKey) (Workload, bool)
}

func (r *clusterReconciler) setup(manager ctrl.Manager) error {
	kind := infrav1.GroupVersion.WithKind(infrav1.KwokClusterKind)
	// The mapping logs to the context of its creation, not to that of its call.
	ctx := ctrl.LoggerInto(context.Background(), manager.GetLogger())
	fromCluster := util.ClusterToInfrastructureMapFunc(ctx, kind, r.Client, &infrav1.KwokCluster{})
	return ctrl.NewControllerManagedBy(manager).
		For(&infrav1.KwokCluster{}).
		// The end of a pause is an event of the Cluster.
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(fromCluster)).
		Complete(r)
}

// Reconcile need not clean up on deletion: the Cluster owns the Secret.
func (r *clusterReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kwokCluster := &infrav1.KwokCluster{}
	if err := r.Get(ctx, request.NamespacedName, kwokCluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, kwokCluster.ObjectMeta)
	if err != nil {
		return ctrl.Result{}, errors.Wrap(err, "looking up the owning Cluster")
	}
	if cluster == nil || !kwokCluster.DeletionTimestamp.IsZero() || annotations.IsPaused(cluster, kwokCluster) {
		return ctrl.Result{}, nil
	}
	workload, known := r.workload(client.ObjectKeyFromObject(cluster))
	if !known {
		return ctrl.Result{RequeueAfter: unknownWorkloadRetry}, nil
	}
	// The Secret comes first: Cluster API connects as soon as the cluster is provisioned, and retries a
	// failed connection only after half a minute.
	if err := r.applyKubeconfig(ctx, cluster, workload); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.report(ctx, kwokCluster, workload)
}

func (r *clusterReconciler) applyKubeconfig(ctx context.Context, cluster *clusterv1.Cluster, workload Workload) error {
	owner := metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind))
	secret := corev1ac.Secret(cluster.Name+"-kubeconfig", cluster.Namespace).
		WithLabels(map[string]string{clusterv1.ClusterNameLabel: cluster.Name}).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(owner.APIVersion).WithKind(owner.Kind).WithName(owner.Name).WithUID(owner.UID).
			WithController(true)).
		WithType(clusterv1.ClusterSecretType).
		WithData(map[string][]byte{"value": workload.Kubeconfig})
	err := r.Apply(ctx, secret, client.FieldOwner(ProviderUser), client.ForceOwnership)
	return errors.Wrap(err, "applying the kubeconfig Secret")
}

func (r *clusterReconciler) report(ctx context.Context, kwokCluster *infrav1.KwokCluster, workload Workload) error {
	if kwokCluster.Spec.ControlPlaneEndpoint != workload.Endpoint {
		before := kwokCluster.DeepCopy()
		kwokCluster.Spec.ControlPlaneEndpoint = workload.Endpoint
		if err := r.Patch(ctx, kwokCluster, client.MergeFrom(before)); err != nil {
			return errors.Wrap(err, "setting the control plane endpoint")
		}
	}
	if ptr.Deref(kwokCluster.Status.Initialization.Provisioned, false) {
		return nil
	}
	before := kwokCluster.DeepCopy()
	kwokCluster.Status.Initialization.Provisioned = ptr.To(true)
	return errors.Wrap(r.Status().Patch(ctx, kwokCluster, client.MergeFrom(before)), "reporting the KwokCluster as provisioned")
}
