package nodemaintenance

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// refusals are the writes that the API server has refused in this reconciliation, or not answered in time, by description: restoring Nodes,
// changing their conditions and withdrawing from Evacuations, see withdrawUnwanted. Such a write does not delay the others.
type refusals struct {
	mu     sync.Mutex
	byWhat map[string]error
}

// collect records an error that concerns only this write, see isOfWrite, and returns nil. It returns other errors, and conflicts, after
// which the next reconciliation reads the object again. doing describes the write, for example "restore Node one".
func (s *scope) collect(ctx context.Context, doing string, err error) error {
	if answers.IsConflict(err) {
		return err
	}
	return s.collectRepeated(ctx, doing, err)
}

// isOfWrite reports whether an error is a response of the API server, also an overloaded one, or says that there was no answer in time: a
// webhook may hang for some objects only. So the error says nothing about other writes.
func isOfWrite(err error) bool {
	_, isResponse := answers.ResponseOf(err)
	return isResponse || answers.IsUnanswered(err)
}

// collectRepeated is collect for a write that was repeated after a conflict: it records a conflict, too.
func (s *scope) collectRepeated(ctx context.Context, doing string, err error) error {
	if !isOfWrite(err) {
		return err
	}
	s.recordRefusal(ctx, doing, err)
	return nil
}

func (s *scope) recordRefusal(ctx context.Context, doing string, err error) {
	ctrl.LoggerFrom(ctx).Error(err, "A write failed. It is repeated", "doing", doing)
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	if s.refusals.byWhat == nil {
		s.refusals.byWhat = map[string]error{}
	}
	s.refusals.byWhat[doing] = errors.Cause(err)
}

// has reports whether a write is among the refusals.
func (r *refusals) has(doing string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byWhat[doing] != nil
}

// reportRefused sets the condition RestoreFailed, with an event, if a write was refused. It ends the reconciliation then, and also if Nodes
// must still become schedulable. It runs after all writes that may be refused, so that the condition is the same in each reconciliation. An
// overload of the API server is reported if it lasts, or if only the condition tells which Nodes must still become schedulable.
func (r *Reconciler) reportRefused(ctx context.Context, s *scope) (bool, error) {
	message, before := s.refusals.message(), slices.Clone(s.maintenance.Status.Conditions)
	isOver := message == "" && !s.uncordonsAgain
	switch {
	case message == "" && s.uncordonsAgain: // the write that was refused has not been repeated, see holdsNodes
	case message == "":
		s.removeCondition(v1alpha1.NodeMaintenanceRestoreFailed)
	case s.refusals.areOverload() && !s.uncordonsAgain && !r.Clusters.Failures.Get(s.request).Persists(s.now):
	case r.reportedMessage(s, v1alpha1.NodeMaintenanceRestoreFailed, message, refusedBackoff(s)) == "":
		s.setCondition(v1alpha1.NodeMaintenanceRestoreFailed, true, v1alpha1.ReasonRequestRefused, message)
	}
	if apiequality.Semantic.DeepEqual(before, s.maintenance.Status.Conditions) {
		return isOver, nil
	}
	changed := s.before.DeepCopy() // without progress that report has not stored
	changed.Status.Conditions = s.maintenance.Status.Conditions
	if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(s.before, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching the status of NodeMaintenance %s", s.maintenance.Name)
	}
	r.statuses.Record(s.request, s.now)
	if message != "" {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventRestoreFailed, message)
	}
	s.before, s.maintenance.ResourceVersion = changed, changed.ResourceVersion
	return isOver, nil
}

// areOverload reports whether all writes were refused because the API server is overloaded or not ready.
func (r *refusals) areOverload() bool {
	for _, err := range r.byWhat {
		if !answers.IsOverload(err) {
			return false
		}
	}
	return true
}

// reportedMessage returns the stored message of a condition if it names the same failed write as a message that is to be stored, and if the
// status was written less than an interval ago, "" otherwise. The error after the colon may differ each time: if each one were stored at
// once, each write of the status would be followed by another reconciliation, which repeats the failed write.
func (r *Reconciler) reportedMessage(s *scope, condition, message string, interval time.Duration) string {
	what, _, _ := strings.Cut(message, ": ")
	reported := meta.FindStatusCondition(s.before.Status.Conditions, condition)
	if reported == nil || !strings.HasPrefix(reported.Message, what+": ") || !s.now.Before(r.statuses.NextWrite(s.request, s.now, interval)) {
		return ""
	}
	return reported.Message
}

// refusedBackoff returns the delay before refused writes are repeated: the time for which writes have been refused, within limits.
func refusedBackoff(s *scope) time.Duration {
	condition := meta.FindStatusCondition(s.before.Status.Conditions, v1alpha1.NodeMaintenanceRestoreFailed)
	if condition == nil {
		return minRefusedRetry
	}
	return max(minRefusedRetry, min(maxRefusedRetry, s.now.Sub(condition.LastTransitionTime.Time)))
}

// message describes the first of the refusals in alphabetical order, and how many others there are. It is empty if there are none.
func (r *refusals) message() string {
	all := slices.Sorted(maps.Keys(r.byWhat))
	if len(all) == 0 {
		return ""
	}
	message := "Cannot " + all[0] + ": " + progress.Describe(r.byWhat[all[0]])
	if more := len(all) - 1; more > 0 {
		message += " (and " + text.Count(more, "more write") + ")"
	}
	return text.Cut(message, text.MaxMessage)
}

// first returns the first of the refusals, nil if there are none.
func (r *refusals) first() error {
	for _, doing := range slices.Sorted(maps.Keys(r.byWhat)) {
		return errors.Wrap(r.byWhat[doing], doing)
	}
	return nil
}
