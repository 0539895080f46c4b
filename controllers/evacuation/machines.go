package evacuation

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// Machines gets the Machines that NodeMaintenances serve.
type Machines struct {
	// Reader reads the management cluster's Machines.
	Reader client.Reader
	// ManagementCluster identifies the management cluster, see v1alpha1.OwnerManagementClusterAnnotation.
	ManagementCluster string
}

// deletedMachines is the index of deleted Machines by their Cluster.
const deletedMachines = "deletedMachinesOfCluster"

// SetupWithManager adds an index to the cache of Machines, because the evictor looks for deleted ones at each event of a Pod.
func (m *Machines) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, deletedMachines, func(object client.Object) []string {
		machine, is := object.(*clusterv1.Machine)
		if !is || machine.DeletionTimestamp.IsZero() {
			return nil
		}
		return []string{machine.Spec.ClusterName}
	})
	return errors.Wrap(err, "adding the index of deleted Machines")
}

// Deleted returns the Machines of a Cluster that are being deleted, to be read only.
func (m *Machines) Deleted(ctx context.Context, cluster types.NamespacedName) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := m.Reader.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingFields{deletedMachines: cluster.Name}, client.UnsafeDisableDeepCopy)
	return list.Items, errors.Wrapf(err, "listing the deleted Machines of Cluster %s", cluster)
}

// Suspended returns a function that reports whether a NodeMaintenance in a workload cluster is suspended, see machinedrain.IsSuspended. When its
// Machine is resumed, workload.Clusters.Resume enqueues all affected objects.
func (m *Machines) Suspended(ctx context.Context, cluster types.NamespacedName) func(*v1alpha1.NodeMaintenance) bool {
	return func(maintenance *v1alpha1.NodeMaintenance) bool {
		var machine *clusterv1.Machine
		if key, served := machinedrain.OwnerMachineOfAnyManager(maintenance, cluster); served {
			machine = &clusterv1.Machine{}
			switch err := m.Reader.Get(ctx, key, machine, client.UnsafeDisableDeepCopy); {
			case apierrors.IsNotFound(err):
				machine = nil
			case err != nil:
				ctrl.LoggerFrom(ctx).Error(err, "Failed to get the Machine that a NodeMaintenance serves", "Machine", key)
				return false
			}
		}
		return machinedrain.IsSuspended(maintenance, machine, m.ManagementCluster)
	}
}
