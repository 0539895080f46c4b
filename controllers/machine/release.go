package machine

import (
	"context"
	"maps"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// fieldManager owns our condition on Machines.
const fieldManager = "capnm-machine"

// progressInterval is the minimum interval between two writes of the condition that differ only in the message. Each write makes the
// controllers of Cluster API reconcile the Machine, and patch it and its Node. The interval grows with the number of Machines that drain:
// see writelimit.Writes.Share.
const progressInterval = 5 * time.Second

// release removes the hook. The same patch prevents Cluster API from repeating a drain that has completed or timed out here.
func (r *Reconciler) release(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	changed := s.machine.DeepCopy()
	machinedrain.Release(changed, s.drainOver, s.volumesOver)
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{})); err != nil {
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "releasing the hook of Machine %s", klog.KObj(s.machine))
	}
	ctrl.LoggerFrom(ctx).Info("Released the hook of the Machine", "reason", result.reason, "message", result.message)
	eventType := corev1.EventTypeNormal
	if result.reason == v1alpha1.ReasonTimedOut {
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Event(s.machine, eventType, eventHookReleased, result.message)
	recordReleaseMetrics(s, result)
	r.forget(client.ObjectKeyFromObject(s.machine))
	s.machine = changed
	return r.report(ctx, s, result)
}

// report writes the condition of the Machine from an outcome, and returns the result of the reconciliation. No other function does.
func (r *Reconciler) report(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	if result.verdict == wait {
		if err := r.recordClock(ctx, s); err != nil {
			return reconcile.Result{}, err
		}
		if taken := s.found.TakenMessage(); taken != "" && s.maintenance != nil && result.reason != "" {
			result.message += "\n" + taken
		}
	}
	status := metav1.ConditionFalse
	if result.verdict != wait && result.reason != v1alpha1.ReasonTimedOut {
		status = metav1.ConditionTrue
	}
	if due, early := r.throttled(s, status, result); early {
		if result.at.IsZero() || due.Before(result.at) {
			result.at = due
		}
	} else if result.reason != "" {
		if err := r.setCondition(ctx, s, status, result); err != nil {
			return reconcile.Result{}, err
		}
	}
	if result.at.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(result.at.Sub(s.now), time.Millisecond)}, nil
}

// recordClock records the start of the drain, and of the wait for volumes, on the Machine if there is a timeout. The deadline must be known
// even if the workload cluster is unreachable.
func (r *Reconciler) recordClock(ctx context.Context, s *scope) error {
	notes := s.clock().Notes(s.machine)
	if len(notes) == 0 {
		return nil
	}
	changed := s.machine.DeepCopy()
	maps.Copy(changed.Annotations, notes)
	if err := r.Client.Patch(ctx, changed, client.MergeFrom(s.machine)); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "noting on Machine %s when its drain has started", klog.KObj(s.machine))
	}
	s.machine = changed
	return nil
}

// throttled returns whether it is too early to write a condition that differs only in the message, and when it may be written.
func (r *Reconciler) throttled(s *scope, status metav1.ConditionStatus, result outcome) (time.Time, bool) {
	present := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance)
	if present == nil || present.Status != status || present.Reason != result.reason || present.Message == result.message {
		return time.Time{}, false
	}
	interval := max(progressInterval, r.conditions.FairInterval(s.now, nil))
	due := r.conditions.NextWrite(client.ObjectKeyFromObject(s.machine), s.now, interval)
	return due, s.now.Before(due)
}

func (r *Reconciler) setCondition(ctx context.Context, s *scope, status metav1.ConditionStatus, result outcome) error {
	written, err := SetCondition(ctx, r.Client, s.machine, metav1.Condition{Status: status, Reason: result.reason, Message: result.message}, s.now)
	if written {
		r.conditions.Record(client.ObjectKeyFromObject(s.machine), s.now)
	}
	return err
}

// SetCondition applies the condition of this provider to a Machine. It uses server-side apply, so that it does not conflict with the
// conditions of Cluster API. A condition without a reason is removed. It returns whether the condition had changed.
func SetCondition(ctx context.Context, c client.Client, machine *clusterv1.Machine, wanted metav1.Condition, now time.Time) (written bool, err error) {
	present := conditions.Get(machine, v1alpha1.MachineNodeMaintenance)
	if present == nil && wanted.Reason == "" || present != nil && present.Status == wanted.Status && present.Reason == wanted.Reason && present.Message == wanted.Message {
		return false, nil
	}
	since := metav1.NewTime(now.Truncate(time.Second))
	if present != nil && present.Status == wanted.Status {
		since = present.LastTransitionTime
	}
	all := []any{}
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
	err = c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldManager), client.ForceOwnership)
	return true, errors.Wrapf(ignoreGone(err), "setting condition %s of Machine %s", v1alpha1.MachineNodeMaintenance, klog.KObj(machine))
}

// ignoreGone ignores that the Machine was deleted, or was replaced by another one with the same name.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
