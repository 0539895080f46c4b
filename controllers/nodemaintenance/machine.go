package nodemaintenance

import (
	"context"
	"fmt"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// findMachine gets the Machine that the NodeMaintenance serves, if it is in this management cluster.
func (r *Reconciler) findMachine(ctx context.Context, s *scope) (bool, error) {
	key, ours := machinedrain.OwnerMachine(s.maintenance, r.ManagementCluster, s.request.Cluster)
	if !ours {
		return true, nil
	}
	machine := &clusterv1.Machine{}
	switch err := r.Machines.Get(ctx, key, machine); {
	case apierrors.IsNotFound(err):
		machine = nil
	case err != nil:
		return false, errors.Wrapf(err, "getting Machine %s", key)
	}
	s.served = &ownerMachine{key: key, machine: machine}
	return true, nil
}

// awaitResume ends the reconciliation while the Machine is paused. workload.Clusters.Resume enqueues the NodeMaintenance when the Machine is
// resumed.
func (r *Reconciler) awaitResume(_ context.Context, s *scope) (bool, error) {
	return s.served == nil || s.served.machine == nil || !annotations.HasPaused(s.served.machine), nil
}

// keepNodeOfDeletedMachine ends the reconciliation if another actor completes the NodeMaintenance while its Machine is being deleted, so that the Node stays
// cordoned. As long as the Machine has the hook, the machine controller recreates the NodeMaintenance.
func (r *Reconciler) keepNodeOfDeletedMachine(ctx context.Context, s *scope) (bool, error) {
	if !s.keepsNode() {
		return true, nil
	}
	_, err := r.stopObserving(ctx, s)
	return false, err
}

func (s *scope) keepsNode() bool {
	return s.served != nil && machinedrain.KeepsNodeCordoned(s.served.machine)
}

// reportMachineDeleted sets the condition MachineDeleted if the Node exists but its Machine does not. The controller does not restore the Node: a
// user must decide what to do with it.
func reportMachineDeleted(s *scope) {
	conditions := &s.maintenance.Status.Conditions
	if s.served == nil || s.served.machine != nil || len(s.nodes) == 0 || s.maintenance.Spec.Stage == v1alpha1.StageComplete {
		meta.RemoveStatusCondition(conditions, v1alpha1.NodeMaintenanceMachineDeleted)
		return
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: v1alpha1.NodeMaintenanceMachineDeleted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNodeExists,
		Message:            fmt.Sprintf("Machine %s is gone, and Node %s is not. Nothing is taken back. Stage Complete leaves the Node as it was found", s.served.key, s.nodes[0].Name),
		ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
	})
}

// recordMachineDeletedEvent writes an event when the condition MachineDeleted becomes true.
func (r *Reconciler) recordMachineDeletedEvent(s *scope) {
	is := meta.FindStatusCondition(s.maintenance.Status.Conditions, v1alpha1.NodeMaintenanceMachineDeleted)
	if is != nil && !meta.IsStatusConditionTrue(s.before.Status.Conditions, is.Type) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventMachineDeleted, is.Message)
	}
}
