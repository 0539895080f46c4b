package machine

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// eventHookReleased on a Machine means that the hook has been removed after the deletion of the Machine. The message says why.
const eventHookReleased = "NodeMaintenanceHookReleased"

// patchMachine patches the Machine with a change, which returns whether it changes anything. The optimistic lock makes the patch fail if
// the Machine has been deleted in the meantime: such a Machine must not get the hook.
func (r *Reconciler) patchMachine(ctx context.Context, s *scope, doing string, change func(*clusterv1.Machine) bool) error {
	changed := s.machine.DeepCopy()
	if !change(changed) {
		return nil
	}
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{})); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "%s of Machine %s", doing, klog.KObj(s.machine))
	}
	s.machine = changed
	return nil
}

// release removes the hook of a deleted Machine. The same patch prevents Cluster API from repeating a drain that has completed or timed out
// here.
func (r *Reconciler) release(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	changed := s.machine.DeepCopy()
	machinedrain.Release(changed, s.drainOver, s.volumesOver)
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{})); err != nil {
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "removing the hook of Machine %s", klog.KObj(s.machine))
	}
	ctrl.LoggerFrom(ctx).Info("Removed the hook of the Machine", "reason", result.reason, "message", result.message)
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
