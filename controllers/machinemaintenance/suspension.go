package machinemaintenance

import (
	"context"
	"sync"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// deletedMachines is the index of deleted Machines by their Cluster.
const deletedMachines = "deletedMachinesOfCluster"

// SetupWithManager adds an index to the cache of Machines, because the evictor looks for deleted ones at each event of a Pod.
func (q *Requester) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, deletedMachines, func(object client.Object) []string {
		machine, is := object.(*clusterv1.Machine)
		if !is || machine.DeletionTimestamp.IsZero() {
			return nil
		}
		return []string{machine.Spec.ClusterName}
	})
	return errors.Wrap(err, "adding the index of deleted Machines")
}

// DeletedMachines returns the Machines of a Cluster that are being deleted, to be read only.
func (q *Requester) DeletedMachines(ctx context.Context, cluster types.NamespacedName) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := q.Client.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingFields{deletedMachines: cluster.Name}, client.UnsafeDisableDeepCopy)
	return list.Items, errors.Wrapf(err, "listing the deleted Machines of Cluster %s", cluster)
}

// Suspension decides which NodeMaintenances of a workload cluster are suspended, see Requester.IsSuspended. When a
// Machine is resumed, or its drain is no longer held, workload.Clusters.Resume enqueues all affected objects. When its drain no longer
// awaits an update, ContinueDrain does.
type Suspension struct {
	decide func(*v1alpha1.NodeMaintenance) (bool, error)

	mu  sync.Mutex
	err error
}

// Suspension returns the Suspension of a workload cluster.
func (q *Requester) Suspension(ctx context.Context, cluster types.NamespacedName) *Suspension {
	return &Suspension{decide: func(maintenance *v1alpha1.NodeMaintenance) (bool, error) {
		return q.isServedSuspended(ctx, cluster, maintenance)
	}}
}

// Of reports whether a NodeMaintenance is suspended. One whose Machine cannot be read counts as suspended: it may be paused or
// held. See Err.
func (s *Suspension) Of(maintenance *v1alpha1.NodeMaintenance) bool {
	suspended, err := s.decide(maintenance)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = err
		return true
	}
	return suspended
}

// Err returns why Of could not read a Machine, nil if it could read all of them. No event follows when it can be read: the caller must
// decide again.
func (s *Suspension) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (q *Requester) isServedSuspended(ctx context.Context, cluster types.NamespacedName, maintenance *v1alpha1.NodeMaintenance) (bool, error) {
	var machine *clusterv1.Machine
	if key, served := machinedrain.OwnerMachineOfAnyManager(maintenance, cluster); served {
		machine = &clusterv1.Machine{}
		switch err := q.Client.Get(ctx, key, machine, client.UnsafeDisableDeepCopy); {
		case apierrors.IsNotFound(err):
			machine = nil
		case err != nil:
			return false, errors.Wrapf(err, "getting Machine %s, which NodeMaintenance %s serves", key, maintenance.Name)
		}
	}
	return q.IsSuspended(ctx, maintenance, machine)
}
