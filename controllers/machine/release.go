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
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/machines"
)

// fieldManager owns our condition on Machines.
const fieldManager = "capnm-machine"

// progressInterval is the least time between two conditions that differ in nothing but their message. Each has Cluster API's
// controllers look at the Machine, and write to it and to its Node.
const progressInterval = 5 * time.Second

// release takes our hook off, and in the same patch keeps Cluster API from draining a second time what was drained here, or
// has run out of time here.
func (r *Reconciler) release(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	changed := s.machine.DeepCopy()
	machines.Release(changed, s.drainOver, s.volumesOver)
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{})); err != nil {
		return remote.Rest(errors.Wrapf(client.IgnoreNotFound(err), "releasing the hook of Machine %s", klog.KObj(s.machine)))
	}
	ctrl.LoggerFrom(ctx).Info("Released the hook of the Machine", "reason", result.reason, "message", result.message)
	eventType := corev1.EventTypeNormal
	if result.reason == v1alpha1.ReasonTimedOut {
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Event(s.machine, eventType, eventHookReleased, result.message)
	observeRelease(s, result)
	r.forget(client.ObjectKeyFromObject(s.machine))
	s.machine = changed
	return r.report(ctx, s, result)
}

// report is the one place that turns an outcome into our condition on the Machine and a result. The condition is applied
// alone, so that it doesn't get in the way of those that Cluster API writes.
func (r *Reconciler) report(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	if result.verdict == wait {
		if err := r.noteClock(ctx, s); err != nil {
			return remote.Rest(err)
		}
	}
	status := metav1.ConditionFalse
	if result.verdict != wait && result.reason != v1alpha1.ReasonTimedOut {
		status = metav1.ConditionTrue
	}
	if due, early := r.early(s, status, result); early {
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

// noteClock keeps on the Machine when the drain, or the wait for volumes, has started, where that has a limit: the workload
// cluster may not be there to tell when it is over.
func (r *Reconciler) noteClock(ctx context.Context, s *scope) error {
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

// early says until when to wait with a condition that tells of progress alone.
func (r *Reconciler) early(s *scope, status metav1.ConditionStatus, result outcome) (time.Time, bool) {
	present := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance)
	if present == nil || present.Status != status || present.Reason != result.reason || present.Message == result.message {
		return time.Time{}, false
	}
	due := r.conditions.Due(client.ObjectKeyFromObject(s.machine), s.now, progressInterval)
	return due, s.now.Before(due)
}

func (r *Reconciler) setCondition(ctx context.Context, s *scope, status metav1.ConditionStatus, result outcome) error {
	present := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance)
	if present != nil && present.Status == status && present.Reason == result.reason && present.Message == result.message {
		return nil
	}
	since := metav1.NewTime(s.now.Truncate(time.Second))
	if present != nil && present.Status == status {
		since = present.LastTransitionTime
	}
	applied := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(),
		"kind":       "Machine",
		"metadata":   map[string]any{"namespace": s.machine.Namespace, "name": s.machine.Name, "uid": string(s.machine.UID)},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": v1alpha1.MachineNodeMaintenance, "status": string(status), "reason": result.reason, "message": result.message,
			"observedGeneration": s.machine.Generation, "lastTransitionTime": since.UTC().Format(time.RFC3339),
		}}},
	}}
	err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldManager), client.ForceOwnership)
	r.conditions.Note(client.ObjectKeyFromObject(s.machine), s.now)
	return errors.Wrapf(ignoreGone(err), "setting condition %s of Machine %s", v1alpha1.MachineNodeMaintenance, klog.KObj(s.machine))
}

// ignoreGone passes over a Machine that is gone, or that another one of the same name has replaced.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
