package kwok

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// machineReconciler gives each KwokMachine a Node.
type machineReconciler struct {
	client.Client
	workload func(client.ObjectKey) (Workload, bool)
}

func (r *machineReconciler) setup(manager ctrl.Manager) error {
	kind := infrav1.GroupVersion.WithKind(infrav1.KwokMachineKind)
	fromCluster, err := util.ClusterToTypedObjectsMapper(manager.GetClient(), &infrav1.KwokMachineList{}, manager.GetScheme())
	if err != nil {
		return errors.Wrap(err, "mapping Clusters to KwokMachines")
	}
	return ctrl.NewControllerManagedBy(manager).
		For(&infrav1.KwokMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(util.MachineToInfrastructureMapFunc(kind))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(fromCluster)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(r)
}

func (r *machineReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kwokMachine := &infrav1.KwokMachine{}
	if err := r.Get(ctx, request.NamespacedName, kwokMachine); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	machine, err := util.GetOwnerMachine(ctx, r.Client, kwokMachine.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, errors.Wrap(err, "looking up the owning Machine")
	}
	if !kwokMachine.DeletionTimestamp.IsZero() {
		if _, moved := kwokMachine.Annotations[clusterctlv1.DeleteForMoveAnnotation]; moved {
			return ctrl.Result{}, nil // clusterctl removes the finalizer; the machine keeps running
		}
		return ctrl.Result{}, r.reconcileDelete(ctx, kwokMachine)
	}
	if machine == nil {
		return ctrl.Result{}, nil
	}
	cluster, err := util.GetClusterByName(ctx, r.Client, machine.Namespace, machine.Spec.ClusterName)
	if err != nil {
		return ctrl.Result{}, errors.Wrap(err, "looking up the Cluster")
	}
	if annotations.IsPaused(cluster, kwokMachine) || !isDue(cluster, machine, kwokMachine) {
		return ctrl.Result{}, nil
	}
	workload, known := r.workload(client.ObjectKeyFromObject(cluster))
	if !known {
		return ctrl.Result{RequeueAfter: unknownWorkloadRetry}, nil
	}
	return ctrl.Result{}, r.provision(ctx, workload, machine, kwokMachine)
}

// isDue returns whether to create the Node: after the cluster and the bootstrap data exist, and only
// once. The Node of a running machine is never recreated, as a kubelet registers only once.
func isDue(cluster *clusterv1.Cluster, machine *clusterv1.Machine, kwokMachine *infrav1.KwokMachine) bool {
	return ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) &&
		machine.Spec.Bootstrap.DataSecretName != nil &&
		!ptr.Deref(kwokMachine.Status.Initialization.Provisioned, false)
}

// provision is idempotent up to its last step. The Node exists before the Machine gets its provider
// ID, so that Cluster API finds it immediately.
func (r *machineReconciler) provision(ctx context.Context, workload Workload, machine *clusterv1.Machine, kwokMachine *infrav1.KwokMachine) error {
	before := kwokMachine.DeepCopy()
	if controllerutil.AddFinalizer(kwokMachine, infrav1.KwokMachineFinalizer) {
		if err := r.Patch(ctx, kwokMachine, client.MergeFrom(before)); err != nil {
			return errors.Wrap(err, "adding the finalizer")
		}
	}
	node := newNode(machine, kwokMachine)
	if err := register(ctx, workload, node); err != nil {
		return err
	}
	before = kwokMachine.DeepCopy()
	kwokMachine.Spec.ProviderID = node.Spec.ProviderID
	if err := r.Patch(ctx, kwokMachine, client.MergeFrom(before)); err != nil {
		return errors.Wrap(err, "setting the provider ID")
	}
	before = kwokMachine.DeepCopy()
	kwokMachine.Status.Addresses = []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: node.Name},
		{Type: clusterv1.MachineInternalIP, Address: "127.0.0.1"},
	}
	kwokMachine.Status.Initialization.Provisioned = ptr.To(true)
	return errors.Wrap(r.Status().Patch(ctx, kwokMachine, client.MergeFrom(before)), "reporting the KwokMachine as provisioned")
}

// reconcileDelete stops the kubelet, as a power switch does. Cluster API deletes the Node
// object.
func (r *machineReconciler) reconcileDelete(ctx context.Context, kwokMachine *infrav1.KwokMachine) error {
	before := kwokMachine.DeepCopy()
	if !controllerutil.RemoveFinalizer(kwokMachine, infrav1.KwokMachineFinalizer) {
		return nil
	}
	// Without a workload cluster there is no kubelet.
	if workload, known := r.workload(clusterOf(kwokMachine)); known {
		if err := stopKubelet(ctx, workload, kwokMachine); err != nil {
			return err
		}
	}
	return errors.Wrap(client.IgnoreNotFound(r.Patch(ctx, kwokMachine, client.MergeFrom(before))), "removing the finalizer")
}

// clusterOf uses the label that Cluster API sets on every infrastructure machine.
func clusterOf(kwokMachine *infrav1.KwokMachine) client.ObjectKey {
	return client.ObjectKey{Namespace: kwokMachine.Namespace, Name: kwokMachine.Labels[clusterv1.ClusterNameLabel]}
}
