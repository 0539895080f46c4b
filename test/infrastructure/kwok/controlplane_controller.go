package kwok

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/controlplane/v1beta1"
)

// controlPlaneReconciler sets the status of a managed control plane: it is initialized and has no
// Machines.
type controlPlaneReconciler struct {
	client.Client
}

func (r *controlPlaneReconciler) setup(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).For(&controlplanev1.KwokControlPlane{}).Complete(r)
}

func (r *controlPlaneReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	controlPlane := &controlplanev1.KwokControlPlane{}
	if err := r.Get(ctx, request.NamespacedName, controlPlane); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, controlPlane.ObjectMeta)
	if err != nil {
		return ctrl.Result{}, errors.Wrap(err, "looking up the owning Cluster")
	}
	if cluster == nil || !controlPlane.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := controlPlane.DeepCopy()
	controlPlane.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	controlPlane.Status.ExternalManagedControlPlane = ptr.To(true)
	controlPlane.Status.Version = controlPlane.Spec.Version
	err = r.Status().Patch(ctx, controlPlane, client.MergeFrom(before))
	return ctrl.Result{}, errors.Wrap(err, "reporting the KwokControlPlane as initialized")
}
