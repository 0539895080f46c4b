package machine

import (
	"context"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// fieldManager owns the condition of this provider on Machines.
const fieldManager = "capnm-machine"

// progressInterval is the minimum interval between two writes of the condition that differ only in the message. Each write makes the
// controllers of Cluster API reconcile the Machine, and patch it and its Node. The interval grows with the number of Machines that drain:
// see writelimit.Limiter.FairInterval.
const progressInterval = 5 * time.Second

// report writes the condition of a draining Machine from the outcome of a step that waits, and returns the result of the reconciliation.
func (r *Reconciler) report(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	err := r.recordClock(ctx, s)
	if delayed := (recordDelayedError{}); errors.As(err, &delayed) {
		return workload.RequeueAt(s.requeueBy(&delayed.due, result).at, s.now), nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.reportWait(ctx, s, result)
}

// reportWait is report without the record of the clock.
func (r *Reconciler) reportWait(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	if taken := s.found.TakenMessage(); taken != "" && s.maintenance != nil && result.reason != "" {
		result.message += "\n" + taken
	}
	switch {
	case result.reason == "":
	case s.HeldByHooks && s.hasUnreadPolicy(): // it may ignore the hooks
		result.message += "\n" + s.unreadProblem().Message
	case s.unselected:
		result.message += "\n" + machinedrain.WithoutPolicyMessage(s.machine, result.reason)
	case s.undecided != nil:
		result.message += "\n" + machinedrain.UndecidedMessage(s.undecided)
	}
	wanted := waitingCondition(result.reason, result.message)
	observeUnended(s, wanted.Reason)
	if due := r.nextReport(s, wanted); s.now.Before(due) {
		if result.at.IsZero() || due.Before(result.at) {
			result.at = due
		}
	} else if wanted.Reason != "" {
		if err := r.setCondition(ctx, s, wanted); err != nil {
			return reconcile.Result{}, err
		}
	}
	return workload.RequeueAt(result.at, s.now), nil
}

// reportResult writes the result of a drain to the condition of a Machine whose hook is removed next. It fails with a conflict if the
// Machine has changed since it was read. It returns the Machine's resourceVersion.
func (r *Reconciler) reportResult(ctx context.Context, s *scope, result outcome) (resourceVersion string, err error) {
	return r.applyCondition(ctx, s, machinedrain.ResultCondition(result.reason, result.message), s.machine.ResourceVersion)
}

// nextReport returns when the condition may be written. One that differs in nothing but the message is delayed, and others are only if they
// replace each other again and again.
func (r *Reconciler) nextReport(s *scope, wanted metav1.Condition) time.Time {
	present, key := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance), client.ObjectKeyFromObject(s.machine)
	switch {
	case present == nil || present.Status != wanted.Status || present.Reason != wanted.Reason:
		return r.conditions.NextUrgent(key, s.now)
	case present.Message == wanted.Message:
		return s.now
	}
	return r.conditions.NextWrite(key, s.now, max(progressInterval, r.conditions.FairInterval(s.now, nil)))
}

// setCondition sets the condition of this provider on the Machine. A condition without a reason is removed.
func (r *Reconciler) setCondition(ctx context.Context, s *scope, wanted metav1.Condition) error {
	present := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance)
	if present == nil && wanted.Reason == "" || present != nil && present.Status == wanted.Status && present.Reason == wanted.Reason &&
		present.Message == wanted.Message {
		return nil
	}
	_, err := r.applyCondition(ctx, s, wanted, "")
	if answers.IsConflict(err) { // another Machine has the name
		return nil
	}
	return err
}

// applyCondition applies the condition of this provider to the Machine; no other function does. It uses server-side apply, so that it does
// not conflict with the conditions of Cluster API. With a resourceVersion, it fails with a conflict if the Machine has another one. It
// returns the one that the Machine has then.
func (r *Reconciler) applyCondition(ctx context.Context, s *scope, wanted metav1.Condition, resourceVersion string) (string, error) {
	machine, all := s.machine, []any{}
	since := machinedrain.TransitionTime(conditions.Get(machine, v1alpha1.MachineNodeMaintenance), wanted, s.now)
	if wanted.Reason != "" {
		all = append(all, map[string]any{
			"type": v1alpha1.MachineNodeMaintenance, "status": string(wanted.Status), "reason": wanted.Reason, "message": wanted.Message,
			"observedGeneration": machine.Generation, "lastTransitionTime": since.UTC().Format(time.RFC3339),
		})
	}
	applied := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(),
		"kind":       "Machine",
		"metadata":   map[string]any{"namespace": machine.Namespace, "name": machine.Name, "uid": string(machine.UID)},
		"status":     map[string]any{"conditions": all},
	}}
	applied.SetResourceVersion(resourceVersion)
	if machinedrain.IsDraining(machine) {
		r.conditions.Record(client.ObjectKeyFromObject(machine), s.now)
	}
	err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldManager), client.ForceOwnership)
	err = errors.Wrapf(answers.IgnoreDoesNotExist(err), "setting condition %s of Machine %s", v1alpha1.MachineNodeMaintenance, klog.KObj(machine))
	return applied.GetResourceVersion(), err
}

// reportFailure runs after each reconciliation of a draining Machine. If a step has failed, reportFailure ends the drain once its
// deadline is exceeded, and reports a persistent failure in its condition.
func (r *Reconciler) reportFailure(ctx context.Context, s *scope, result reconcile.Result, err error) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(s.machine)
	var delayed recordDelayedError
	if errors.As(err, &delayed) {
		err, result = nil, workload.RequeueAt(delayed.due, s.now)
		s.blind = true // a block that is known does not end
	}
	if workload.IsNotConnected(err) || workload.IsPaused(err) {
		err, result = nil, reconcile.Result{} // the next connection, or the end of the pause, triggers a reconciliation
	}
	failure := r.memoryOf(s.machine).failure.Next(err, s.now)
	r.memoryOf(s.machine).failure = failure
	if err == nil {
		return result, nil
	}
	waiting := outcome{action: wait, reason: v1alpha1.ReasonReconcileFailed, message: machinedrain.FailureMessage(err), at: failure.ReportAt()}
	isReported := failure.Persists(s.now) // a transient failure does not replace the condition of a wait for a turn or for volumes
	if isReported {
		waiting.at = s.now.Add(pollInterval)
		if waiting = r.limit(ctx, s, waiting); waiting.action == release {
			return r.finish(ctx, s, waiting)
		}
	}
	if recordErr := r.recordClock(ctx, s); recordErr != nil { // which may be what has failed
		ctrl.LoggerFrom(ctx).Error(recordErr, "Failed to record the clock of the drain")
		// Until the annotation is recorded, the condition is the only record that the Machine waits for a turn: it stays.
		_, waits := s.machine.Annotations[v1alpha1.WaitingForTurnAnnotation]
		isReported = isReported && (waits || conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance) != v1alpha1.ReasonWaitingForTurn)
	}
	if isReported {
		if _, reportErr := r.reportWait(ctx, s, waiting); reportErr != nil {
			ctrl.LoggerFrom(ctx).Error(reportErr, "Failed to report the failure of the drain")
		}
	}
	r.retryAfter(key, max(waiting.at.Sub(s.now), time.Millisecond))
	return reconcile.Result{}, err
}
