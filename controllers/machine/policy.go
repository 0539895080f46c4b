package machine

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// awaitPolicy sets until when the policy of a Machine may be replaced, so that its drain stays as it is: no policy selects it, or another
// one than before. The times at which that was found are kept in memory: a restart makes the first wait longer, and ends the second.
func (r *Reconciler) awaitPolicy(ctx context.Context, s *scope) {
	if s.unselected && machinedrain.HasHook(s.machine) { // without the hook, no policy has selected it
		r.awaitMissingPolicy(ctx, s)
	} else {
		remembered := r.memoryOf(s.machine)
		remembered.policyGone, remembered.isPolicyGone = time.Time{}, false
	}
	if !s.hasUnreadPolicy() {
		r.awaitFormerPolicy(ctx, s)
	}
}

func (r *Reconciler) awaitMissingPolicy(ctx context.Context, s *scope) {
	remembered := r.memoryOf(s.machine)
	remembered.policyGone = cmp.Or(remembered.policyGone, s.now)
	if s.policySettles = machinedrain.AwaitPolicy(remembered.policyGone, s.now); !s.policySettles.IsZero() || remembered.isPolicyGone {
		return
	}
	if remembered.isPolicyGone = r.confirmGone(ctx, s, remembered.policyGone); !remembered.isPolicyGone {
		s.policySettles = s.now.Add(s.askAgain())
	}
}

// awaitFormerPolicy remembers the policy that a Machine follows. If the Node is maintained, the API server confirms that another one
// selects the Machine, see confirmGone.
func (r *Reconciler) awaitFormerPolicy(ctx context.Context, s *scope) {
	key := client.ObjectKeyFromObject(s.machine)
	remembered, _ := r.followed.Load(key)
	before, _ := remembered.(machinedrain.Followed)
	followed, until := before.Next(s.machine, s.policy, s.now)
	isMaintained := machinedrain.IsDraining(s.machine) || machinedrain.MayBeMaintained(s.machine)
	switch since := followed.Other(); {
	case s.policy == nil:
	case !until.IsZero():
		s.policySettles = until
	case !since.IsZero() && isMaintained && !r.confirmGone(ctx, s, since):
		s.policySettles = s.now.Add(s.askAgain())
	default:
		followed = followed.Settled()
	}
	if followed != before {
		r.followed.Store(key, followed)
	}
}

// awaitsFormerPolicy reports whether another policy selects the Machine than before, maybe for a moment only: its maintenance stays as it
// is. If it waits for a turn under the limit of the former one, it continues to wait, see turn.
func (s *scope) awaitsFormerPolicy() bool {
	hasBegun := s.maintenance != nil && s.maintenance.Spec.Stage == v1alpha1.StageDrain
	return s.policy != nil && !s.policySettles.IsZero() && (hasBegun || !machinedrain.FollowsAnother(s.machine, s.policy))
}

// awaitsPolicy reports whether no policy selects the Machine, maybe for a moment only: its hook and its drain stay as they are.
func (s *scope) awaitsPolicy() bool { return s.unselected && !s.policySettles.IsZero() }

// keepsSettings reports whether the maintenance of a Machine stays as it is, because its policy may be replaced.
func (s *scope) keepsSettings() bool { return s.awaitsPolicy() || s.awaitsFormerPolicy() }

// awaitingPolicy is the outcome while keepsSettings is true. A block that is known does not end.
func (s *scope) awaitingPolicy() outcome {
	s.blind = true
	waiting := outcome{action: wait, at: s.policySettles}
	if s.goneProblem != nil {
		waiting.reason, waiting.message = v1alpha1.ReasonReconcileFailed, machinedrain.FailureMessage(s.goneProblem)
	}
	return waiting
}

// askAgain returns after how long the API server is asked again whether a policy or rule is gone.
func (s *scope) askAgain() time.Duration {
	if s.goneProblem != nil {
		return contactRetry
	}
	return observeRetry
}

// errNotDelivered means that the API server has other policies or rules than the reconciliation has read from the cache.
var errNotDelivered = errors.New("the watches of MachineDrainPolicies, MachineDrainRules and Clusters in the management cluster have not delivered the " +
	"latest changes")

// confirmGone reports whether the API server confirms that no policy selects a Machine, or another one than before, or that a rule of its
// drain is gone, as was found at a time: the watches may not have delivered yet that the policy or rule was created again, or that the
// labels of the Cluster were restored, because the management cluster was not reachable meanwhile. It reports false while that is not
// known.
func (r *Reconciler) confirmGone(ctx context.Context, s *scope, since time.Time) bool {
	delivered, asOf, err := r.areSettingsDelivered(ctx, s)
	r.observeConfirmation(ctx, s, delivered, err)
	return delivered && !asOf.Before(since.Add(rules.GoneCounts-settingsShared))
}

// observeConfirmation sets the goneProblem if the API server has not confirmed for a while what the cache says.
func (r *Reconciler) observeConfirmation(ctx context.Context, s *scope, delivered bool, err error) {
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to confirm that a policy, a rule or a label of the Machine is gone. Its hook and its drain stay as they are")
	} else if !delivered {
		err = errNotDelivered
	}
	if err == nil {
		return
	}
	failure := s.before.unasked.Next(err, s.now)
	if r.memoryOf(s.machine).unasked = failure; failure.Persists(s.now) {
		s.goneProblem = err
	}
}

// holdUnconfirmed changes nothing of a running Machine while the labels of its Cluster are not confirmed, see awaitsLabels.
func (r *Reconciler) holdUnconfirmed(ctx context.Context, s *scope) (reconcile.Result, error) {
	return reconcile.Result{RequeueAfter: s.askAgain()}, r.reportUnconfirmed(ctx, s)
}

// reportUnconfirmed writes to the condition of a running Machine why its hook and its maintenance stay as they are, if that lasts. One
// whose maintenance has reached its stage or timed out waits for nothing, and that result counts for others.
func (r *Reconciler) reportUnconfirmed(ctx context.Context, s *scope) error {
	hasEnded := conditions.IsTrue(s.machine, v1alpha1.MachineNodeMaintenance) ||
		conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance) == v1alpha1.ReasonTimedOut
	if s.goneProblem == nil || hasEnded {
		return nil
	}
	return r.setCondition(ctx, s, waitingCondition(v1alpha1.ReasonReconcileFailed, machinedrain.UnconfirmedMessage(s.goneProblem)))
}

// isReportOutdated reports whether the condition of a running Machine is that of reportUnconfirmed, and does not hold any more. A drain in
// place replaces it.
func (s *scope) isReportOutdated() bool {
	return s.policySettles.IsZero() && machinedrain.RequestedAt(s.machine) == nil &&
		conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance) == v1alpha1.ReasonReconcileFailed
}
