package machine

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// wakeUps is how many of the longest-waiting Machines of each policy are reconciled when a drain ends. More than one, because several
// drains may end at the same time.
const wakeUps = 16

// turnRetry is how often a waiting Machine is reconciled without an event. A draining Machine whose Node is lost permits
// another drain, but triggers no event for the waiting Machines.
const turnRetry = time.Minute

// nextInLine maps a Machine whose drain has ended to the longest-waiting Machines of its Cluster.
func (r *Reconciler) nextInLine(ctx context.Context, ended client.Object) []reconcile.Request {
	machines, err := r.machinesIn(ctx, r.Client, types.NamespacedName{Namespace: ended.GetNamespace(), Name: ended.GetLabels()[clusterv1.ClusterNameLabel]})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to find the Machines that wait for turns")
		return nil
	}
	waiting := slices.DeleteFunc(machines, func(m clusterv1.Machine) bool { return !machinedrain.IsDraining(&m) || !mayWaitForTurn(&m) })
	slices.SortFunc(waiting, func(a, b clusterv1.Machine) int { return machinedrain.OldestRequestFirst(&a, &b) })
	requests, ofPolicy := make([]reconcile.Request, 0, wakeUps), map[string]int{}
	for i := range waiting {
		policy := machinedrain.LimitOf(&waiting[i], nil).Policy
		if ofPolicy[policy]++; ofPolicy[policy] <= wakeUps {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&waiting[i])})
		}
	}
	return requests
}

// mayWaitForTurn reports whether a Machine waits because of maxParallelDrains. It also returns true if no condition of the Machine has been
// observed yet, because the Machine may be about to wait.
func mayWaitForTurn(m *clusterv1.Machine) bool {
	reason := conditions.GetReason(m, v1alpha1.MachineNodeMaintenance)
	return reason == "" || reason == v1alpha1.ReasonWaitingForTurn
}

// drainEnded passes events of Machines that have stopped draining or waiting for that, or whose drains are held: other Machines may have
// waited for them.
type drainEnded struct {
	predicate.Funcs
}

// Create implements predicate.Predicate.
func (drainEnded) Create(event.CreateEvent) bool { return false }

// Generic implements predicate.Predicate.
func (drainEnded) Generic(event.GenericEvent) bool { return false }

// Delete implements predicate.Predicate.
func (drainEnded) Delete(e event.DeleteEvent) bool {
	machine, ok := e.Object.(*clusterv1.Machine)
	return ok && machinedrain.MayDrain(machine)
}

// Update implements predicate.Predicate.
func (drainEnded) Update(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*clusterv1.Machine)
	after, alsoOK := e.ObjectNew.(*clusterv1.Machine)
	if !ok || !alsoOK {
		return false
	}
	isHeldNow := !machinedrain.IsHeldByHooks(before) && machinedrain.IsHeldByHooks(after)
	ended := func(is func(*clusterv1.Machine) bool) bool { return is(before) && !is(after) }
	return isHeldNow || ended(machinedrain.IsDraining) || ended(machinedrain.MayDrain)
}
