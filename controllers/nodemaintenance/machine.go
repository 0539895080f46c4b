package nodemaintenance

import (
	"context"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// ownerMachine is the Machine that a NodeMaintenance serves.
type ownerMachine struct {
	key     types.NamespacedName
	machine *clusterv1.Machine // nil: it no longer exists
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

// findMachine gets the Machine that the NodeMaintenance serves, if it is in this management cluster, and decides whether the maintenance is suspended,
// and whether it is recreated.
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
	machine := &clusterv1.Machine{}
	switch err := r.Machines.Get(ctx, key, machine); {
	case apierrors.IsNotFound(err):
		machine = nil
	case err != nil:
		return errors.Wrapf(err, "getting Machine %s", key)
	}
	if s.suspended, err = r.Maintenances.IsSuspended(ctx, s.maintenance, machine); err != nil {
		return err
	}
	isHere := machine != nil && !machinedrain.IsOfNamesake(s.maintenance, machine, r.ManagementCluster)
	if isHere || machinedrain.IsOfManagementCluster(s.maintenance, r.ManagementCluster) {
		s.owner = &ownerMachine{key: key, machine: machine}
	}
	return nil
}

// isPaused reports whether the Machine is paused.
func (s *scope) isPaused() bool {
	return s.owner != nil && s.owner.machine != nil && annotations.HasPaused(s.owner.machine)
}

// keepsNodeCordoned reports whether the Machine is being deleted, so that its Node stays cordoned in stage Complete, too. As long as the
// Machine has the hook, the machine controller recreates the NodeMaintenance.
func (s *scope) keepsNodeCordoned() bool {
	return s.owner != nil && machinedrain.KeepsNodeCordoned(s.owner.machine)
}

// isLeftToClusterAPI reports whether the Machine is being deleted without the hook, so that Cluster API drains the Node if it is not drained yet.
func (s *scope) isLeftToClusterAPI() bool {
	return s.keepsNodeCordoned() && !machinedrain.HasHook(s.owner.machine)
}

// isMachineDeleted reports whether the Node exists but its Machine does not. The controller does not restore such a Node: a user must decide
// what to do with it.
func (s *scope) isMachineDeleted() bool {
	return s.owner != nil && s.owner.machine == nil && len(s.nodes) > 0
}
