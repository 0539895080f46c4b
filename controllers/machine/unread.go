package machine

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// unreadRetry is how often a Machine is reconciled while its policy cannot be decoded, if no event triggers it.
const unreadRetry = time.Minute

// holdRunning changes no maintenance of the Node of a Machine that is not being deleted. Its hook stays or is absent as before.
func (r *Reconciler) holdRunning(ctx context.Context, s *scope) (reconcile.Result, error) {
	if machinedrain.MayDrain(s.machine) { // also if nothing requests the drain any more: it ends only when the policy is known
		return r.report(ctx, s, s.held())
	}
	return reconcile.Result{RequeueAfter: unreadRetry}, nil
}

func (s *scope) hasUnreadPolicy() bool { return s.unread != nil }

// held returns the outcome of a step that waits for the policy to be fixed. No deadline ends the wait: it would release a Machine that is
// not drained.
func (s *scope) held() outcome {
	problem := s.unreadProblem()
	return outcome{action: wait, reason: problem.Reason, message: problem.Message, at: s.now.Add(unreadRetry)}
}

func (s *scope) unreadProblem() *machinemaintenance.Problem {
	return &machinemaintenance.Problem{
		Reason:  v1alpha1.ReasonPolicyNotDecodable,
		Message: machinedrain.UnreadPolicyMessage(s.machine.Namespace, s.unread.Object.Name, machinedrain.FailureMessage(s.unread.Err)),
	}
}
