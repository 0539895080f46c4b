package nodemaintenance

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// ownerMachine is the Machine that a NodeMaintenance serves.
type ownerMachine struct {
	key         types.NamespacedName
	machine     *clusterv1.Machine // nil: it no longer exists
	keepsCordon bool               // see keepsNodeCordoned
}

// isRecreated reports whether a deleted NodeMaintenance of a Machine is recreated at once. A user has deleted it: the manager moves it to
// stage Complete before it deletes it. The manager of the other management cluster recreates one that serves a Machine there.
func (r *Reconciler) isRecreated(ctx context.Context, s *scope) (bool, error) {
	if s.owner == nil {
		_, serves := s.maintenance.Annotations[v1alpha1.OwnerMachineAnnotation]
		return serves && s.maintenance.Spec.Stage != v1alpha1.StageComplete, nil
	}
	if s.owner.machine == nil {
		return false, nil
	}
	wanted, err := r.Maintenances.Wanted(ctx, s.owner.machine, s.now)
	return err == nil && machinedrain.IsRecreated(s.maintenance, s.owner.machine, wanted), err
}

// findMachine gets the Machine that the NodeMaintenance serves, if it is in this management cluster, and decides whether the maintenance is
// suspended, and whether it is recreated.
func (r *Reconciler) findMachine(ctx context.Context, s *scope) (err error) {
	if err := r.findOwner(ctx, s); err != nil || s.maintenance.DeletionTimestamp.IsZero() {
		return err
	}
	s.recreated, err = r.isRecreated(ctx, s)
	return err
}

func (r *Reconciler) findOwner(ctx context.Context, s *scope) (err error) {
	key, served := machinedrain.OwnerMachineOfAnyManager(s.maintenance, s.request.Cluster)
	if !served {
		s.suspended, err = r.Maintenances.IsSuspended(ctx, s.maintenance, nil)
		return err
	}
	machine, keepsCordon, err := r.machineOf(ctx, s, key)
	if err != nil {
		return err
	}
	if s.suspended, err = r.Maintenances.IsSuspended(ctx, s.maintenance, machine); err != nil {
		return err
	}
	isHere := machine != nil && !machinedrain.IsOfNamesake(s.maintenance, machine, r.ManagementCluster)
	if isHere || machinedrain.IsOfManagementCluster(s.maintenance, r.ManagementCluster) {
		s.owner = &ownerMachine{key: key, machine: machine, keepsCordon: keepsCordon}
	}
	return nil
}

// machineOf returns the Machine that a NodeMaintenance serves, nil if it no longer exists, and whether its Node stays cordoned in stage
// Complete: see machinedrain.KeepsNodeCordoned. Cluster API does not delete the Nodes of a Cluster that is being deleted. So that Node
// stays cordoned without its Machine.
func (r *Reconciler) machineOf(ctx context.Context, s *scope, key types.NamespacedName) (machine *clusterv1.Machine, keepsCordon bool, _ error) {
	machine = &clusterv1.Machine{}
	switch err := r.Machines.Get(ctx, key, machine); {
	case err == nil:
		return machine, machinedrain.KeepsNodeCordoned(machine), nil
	case !apierrors.IsNotFound(err):
		return nil, false, errors.Wrapf(err, "getting Machine %s", key)
	}
	cluster := &clusterv1.Cluster{}
	err := r.Machines.Get(ctx, s.request.Cluster, cluster)
	return nil, err == nil && !cluster.DeletionTimestamp.IsZero(), errors.Wrapf(client.IgnoreNotFound(err), "getting Cluster %s", s.request.Cluster)
}

// isKeptCordoned reports whether a Node stays cordoned because one of these NodeMaintenances, which is in stage Complete, has drained it
// for a Machine that is being deleted.
func (r *Reconciler) isKeptCordoned(ctx context.Context, s *scope, maintenances []*v1alpha1.NodeMaintenance) (bool, error) {
	for _, m := range maintenances {
		key, served := machinedrain.OwnerMachine(m, r.ManagementCluster, s.request.Cluster)
		if !served || m.Spec.Stage != v1alpha1.StageComplete {
			continue
		}
		if _, keepsCordon, err := r.machineOf(ctx, s, key); err != nil || keepsCordon {
			return keepsCordon, err
		}
	}
	return false, nil
}

// isPaused reports whether the Machine is paused by its annotation.
func (s *scope) isPaused() bool {
	return s.owner != nil && s.owner.machine != nil && machinedrain.HasPauseAnnotation(s.owner.machine)
}

// keepsNodeCordoned reports whether the Machine is being deleted, or was deleted with its Cluster, so that its Node stays cordoned in stage
// Complete, too. As long as the Machine has the hook, the machine controller recreates the NodeMaintenance.
func (s *scope) keepsNodeCordoned() bool { return s.owner != nil && s.owner.keepsCordon }

// isDeletedWithCluster reports whether the Machine no longer exists and its Cluster is being deleted.
func (s *scope) isDeletedWithCluster() bool { return s.keepsNodeCordoned() && s.owner.machine == nil }

// isLeftToClusterAPI reports whether the maintenance leaves the Node to Cluster API: the Machine is being deleted without the hook, so that
// Cluster API drains the Node if it is not drained yet, or the Machine was deleted with its Cluster.
func (s *scope) isLeftToClusterAPI() bool {
	return s.isDeletedWithCluster() || s.keepsNodeCordoned() && !machinedrain.HasHook(s.owner.machine)
}

// isMachineDeleted reports whether the Node exists but its Machine does not. The controller does not restore such a Node: a user must
// decide what to do with it.
func (s *scope) isMachineDeleted() bool {
	return s.owner != nil && s.owner.machine == nil && len(s.nodes) > 0
}
