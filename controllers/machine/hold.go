package machine

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// holdRetry is how often a Machine whose drain is held is reconciled without an event: the deletion of its infrastructure machine, for
// example, ends the wait and triggers none.
const holdRetry = time.Minute

// findHooks finds the hooks of other owners that hold the drain. While the policy is not known, it ignores none of them.
func (s *scope) findHooks() {
	s.hooks = machinedrain.HoldingHooks(s.machine, s.policy)
	s.HeldByHooks = len(s.hooks) > 0
}

// awaitHooks waits until hooks of other owners no longer hold the drain. It does not connect to the workload cluster: the record on the
// Machine suspends a drain that has begun. After the hold, it continues as after a pause, see reconcileDelete.
func (r *Reconciler) awaitHooks(s *scope) outcome {
	r.forgetDrain(client.ObjectKeyFromObject(s.machine))
	return outcome{action: wait, reason: v1alpha1.ReasonWaitingForPreDrainHook, message: machinedrain.HoldMessage(s.hooks), at: s.now.Add(holdRetry)}
}

// resume continues or begins a drain that was held, when the Machine has a turn. One that had begun is suspended until the cache has its
// NodeMaintenance with the new start of the drain timeout: the controllers that evict and delete Pods read the same cache. As before a
// drain begins, confirmSettings comes first: rules may have been created during the hold.
func (r *Reconciler) resume(ctx context.Context, s *scope) (outcome, error) {
	if !machinedrain.WasHeldByHooks(s.machine) {
		return outcome{}, nil
	}
	hadBegun := s.maintenance != nil && s.maintenance.Spec.Stage == v1alpha1.StageDrain
	if hadBegun && s.Turn.Now() {
		if waiting := r.confirmSettings(ctx, s); waiting.action == wait {
			s.Turn = nil // its drain timeout does not begin yet
			return waiting, nil
		}
	}
	r.Clusters.WithdrawConfirmation(s.maintenanceRequest())
	if err := r.recordClock(ctx, s); err != nil {
		return outcome{}, err
	}
	waiting := outcome{action: wait, at: s.now.Add(observeRetry)}
	switch {
	case !machinedrain.WasHeldByHooks(s.machine): // until the cache has the Machine without the record: otherwise, a drain that begins now would be suspended
		return waiting, nil
	case !hadBegun: // it waits for a turn, with the Node cordoned
		return outcome{}, nil
	case !s.Turn.Now():
		return r.awaitTurn(ctx, s)
	}
	desired, problem, err := r.desired(ctx, s, machinedrain.DaemonSetPods(s.policy, s.maintenance))
	if err != nil {
		return outcome{}, err
	}
	if problem != nil {
		desired.Spec.DrainRules = s.maintenance.Spec.DrainRules
	}
	if _, err := machinemaintenance.Apply(ctx, s.client, s.maintenance, desired); err != nil {
		return r.unreachable(ctx, s, err)
	}
	ctrl.LoggerFrom(ctx).Info("Continuing the drain, which hooks of other owners have held", "NodeMaintenance", s.maintenance.Name)
	waiting.reason = v1alpha1.ReasonMachineDraining
	waiting.message = "Waiting for NodeMaintenance " + desired.Name + " to be observed with the new start of the drain"
	return waiting, nil
}
