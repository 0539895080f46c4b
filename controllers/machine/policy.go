package machine

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// awaitPolicy sets until when the policy of a Machine may be replaced, so that no drain begins: no policy selects it, or another one than
// it has recorded. The times at which that was found are kept in memory: a restart makes the wait longer.
func (r *Reconciler) awaitPolicy(ctx context.Context, s *scope) {
	remembered := r.memoryOf(s.machine)
	settles := func(since *time.Time, lasts bool) time.Time {
		if !lasts {
			*since = time.Time{}
			return time.Time{}
		}
		*since = cmp.Or(*since, s.now)
		return machinedrain.AwaitPolicy(*since, s.now)
	}
	isGone := s.unselected && machinedrain.HasHook(s.machine) // without the hook, no policy has selected it
	gone := settles(&remembered.policyGone, isGone)
	s.policySettles = cmp.Or(gone, settles(&remembered.otherPolicy, machinedrain.FollowsAnother(s.machine, s.policy)))
	remembered.isPolicyGone = remembered.isPolicyGone && isGone
	if !isGone || !gone.IsZero() || remembered.isPolicyGone {
		return
	}
	if remembered.isPolicyGone = r.confirmGone(ctx, s, remembered.policyGone); !remembered.isPolicyGone {
		s.policySettles = s.now.Add(s.askAgain())
	}
}

// awaitsPolicy reports whether no policy selects the Machine, maybe for a moment only: its hook and its drain stay as they are.
func (s *scope) awaitsPolicy() bool { return s.unselected && !s.policySettles.IsZero() }

// awaitingPolicy is the outcome while awaitsPolicy is true for a deleted Machine. A block that is known does not end.
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

// confirmGone reports whether the API server confirms that no policy selects a Machine, or that a rule of its drain is gone, as was found
// at a time: the watches may not have delivered yet that the policy or rule was created again, or that the labels of the Cluster were
// restored, because the management cluster was not reachable meanwhile. It reports false while that is not known.
func (r *Reconciler) confirmGone(ctx context.Context, s *scope, since time.Time) bool {
	delivered, asOf, err := r.areSettingsDelivered(ctx, s)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to confirm that a policy or rule of the Machine is gone. Its hook and its drain stay as they are")
	} else if !delivered {
		err = errNotDelivered
	}
	failure := s.before.unasked.Next(err, s.now)
	if r.memoryOf(s.machine).unasked = failure; failure.Persists(s.now) {
		s.goneProblem = err
	}
	return delivered && !asOf.Before(since.Add(rules.GoneCounts-settingsShared))
}
