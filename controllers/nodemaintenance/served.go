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

// served is the Machine that a NodeMaintenance serves.
type served struct {
	key     types.NamespacedName
	machine *clusterv1.Machine // nil: it no longer exists
}

// findMachine gets the Machine that the NodeMaintenance serves, if it is in this management cluster.
func (r *Reconciler) findMachine(ctx context.Context, s *scope) (bool, error) {
	key, ours := machinedrain.Served(s.maintenance, r.ManagementCluster, s.request.Cluster)
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
	s.served = &served{key: key, machine: machine}
	return true, nil
}

// awaitResume ends the reconciliation while the Machine is paused. workload.Clusters.Resume enqueues the NodeMaintenance when the Machine is
// resumed.
func (r *Reconciler) awaitResume(_ context.Context, s *scope) (bool, error) {
	return s.served == nil || s.served.machine == nil || !annotations.HasPaused(s.served.machine), nil
}

// keepNode ends the reconciliation if another actor completes the NodeMaintenance while its Machine is being deleted, so that the Node stays
// cordoned. As long as the Machine has the hook, the machine controller recreates the NodeMaintenance.
func (r *Reconciler) keepNode(ctx context.Context, s *scope) (bool, error) {
	if !s.keepsNode() {
		return true, nil
	}
	_, err := r.forget(ctx, s)
	return false, err
}

func (s *scope) keepsNode() bool { return s.served != nil && machinedrain.KeepsNode(s.served.machine) }

// reportMachineGone sets the condition MachineGone if the Node exists but its Machine does not. The controller does not restore the Node: a
// user must decide what to do with it.
func reportMachineGone(s *scope) {
	conditions := &s.maintenance.Status.Conditions
	if s.served == nil || s.served.machine != nil || len(s.nodes) == 0 || s.maintenance.Spec.Stage == v1alpha1.StageComplete {
		meta.RemoveStatusCondition(conditions, v1alpha1.NodeMaintenanceMachineGone)
		return
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: v1alpha1.NodeMaintenanceMachineGone, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNodeIsThere,
		Message:            fmt.Sprintf("Machine %s is gone, and Node %s is not. Nothing is taken back. Stage Complete leaves the Node as it was found", s.served.key, s.nodes[0].Name),
		ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
	})
}

// tellMachineGone writes an event when the condition MachineGone becomes true.
func (r *Reconciler) tellMachineGone(s *scope) {
	is := meta.FindStatusCondition(s.maintenance.Status.Conditions, v1alpha1.NodeMaintenanceMachineGone)
	if is != nil && !meta.IsStatusConditionTrue(s.before.Status.Conditions, is.Type) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventMachineGone, is.Message)
	}
}
