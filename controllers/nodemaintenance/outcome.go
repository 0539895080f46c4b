package nodemaintenance

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// afterDeletion is how long after its end the drain of a deleted Machine is first read here. Most are released before: of those, the
// controller of drain outcomes reads all of a Cluster together. Each reading lists Pods, and many Machines may be deleted at once.
const afterDeletion = time.Minute

// readOutcome reads what became of the Pods that a drain has evicted, when that is due. It is the last step, and its failures are no
// failures of the drain: nothing waits for the outcome.
func (r *Reconciler) readOutcome(ctx context.Context, s *scope) (bool, error) {
	defer s.observeWithoutPlace()
	before := s.maintenance.Status.Outcome
	present := before.DeepCopy()
	if drained := meta.FindStatusCondition(s.maintenance.Status.Conditions, v1alpha1.NodeMaintenanceDrained); drained != nil &&
		drained.Status == metav1.ConditionTrue && len(s.nodes) > 0 && !s.hadEnded() &&
		(present == nil || present.EndTime.Before(&drained.LastTransitionTime)) {
		present = r.evicted(s, drained.LastTransitionTime)
	}
	if present == nil {
		return true, nil
	}
	if first := present.EndTime.Add(afterDeletion); s.servesDeletion() && s.now.Before(first) {
		s.requeueAfter(first)
		return true, nil
	}
	if outcome.Due(present, s.now) {
		world := r.Clusters.ReadControllers(ctx, s.request.Cluster, outcome.Controllers(present))
		outcome.Read(world, s.now, present)
		changed := s.before.DeepCopy()
		changed.Status.Outcome = present
		if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(s.before, client.MergeFromWithOptimisticLock{})); err != nil {
			ctrl.LoggerFrom(ctx).V(1).Info("Failed to store the outcome of the drain", "error", err.Error())
			return true, nil // the event of what has changed starts the next reconciliation
		}
		s.before, s.maintenance.ResourceVersion, s.maintenance.Status.Outcome = changed, changed.ResourceVersion, present
		r.reportOutcome(ctx, s, before)
	}
	s.requeueAfter(outcome.Next(present, s.now))
	return true, nil
}

// hadEnded reports whether the drain had ended before, and no Pod has terminated since then. The condition Drained is False meanwhile if
// the Pods were listed again, after a restart of the manager for example.
func (s *scope) hadEnded() bool {
	last := s.before.Status.Outcome
	return last != nil && !last.EndTime.Before(s.maintenance.Status.Summary.LastProgressTime)
}

// evicted returns the Pods that the drain has evicted. What became of them is not known yet.
func (r *Reconciler) evicted(s *scope, end metav1.Time) *v1alpha1.DrainOutcome {
	var deleted *metav1.Time
	if s.servesDeletion() {
		deleted = s.owner.machine.DeletionTimestamp
	}
	start := outcome.Start(s.maintenance, deleted)
	if start == nil {
		return nil
	}
	evicted := r.Recorder.Outcome(s.request, s.trace(), *start, s.maintenance.Status.Summary.PodsEvacuated, end.Time)
	return &evicted
}

// reportOutcome logs and exports what has changed, and writes an event if Pods have no place. For a deleted Machine, the controller of
// drain outcomes does that.
func (r *Reconciler) reportOutcome(ctx context.Context, s *scope, before *v1alpha1.DrainOutcome) {
	if s.servesDeletion() {
		return
	}
	present := s.maintenance.Status.Outcome
	r.Recorder.RecordOutcome(s.trace(), before, present)
	if before == nil || before.Pods != present.Pods {
		ctrl.LoggerFrom(ctx).Info("Read what became of the evicted Pods of a drain", "pods", outcome.Summary(present.Pods))
	}
	if outcome.WithoutPlace(present, s.now) > 0 && (before == nil || outcome.WithoutPlace(before, s.now) == 0) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, outcome.EventPodsWithoutPlace,
			outcome.WithoutPlaceMessage(present, "NodeMaintenance "+s.maintenance.Name))
	}
}

// observeWithoutPlace sets the metric to the stored outcome, which counts for a limited time. For a deleted Machine, the controller of
// drain outcomes does that.
func (s *scope) observeWithoutPlace() {
	stored := s.maintenance.Status.Outcome
	if stored == nil || s.servesDeletion() || outcome.WithoutPlace(stored, s.now) == 0 {
		forgetWithoutPlace(s.request)
		return
	}
	tracing.ObserveWithoutPlace(sourceOf(s.request), map[types.NamespacedName]int32{s.request.Cluster: outcome.WithoutPlace(stored, s.now)})
}

// forgetWithoutPlace drops the Pods without a place of a NodeMaintenance from the metric.
func forgetWithoutPlace(request workload.Request) {
	tracing.ObserveWithoutPlace(sourceOf(request), nil)
}

func sourceOf(request workload.Request) string {
	return "NodeMaintenance " + request.Cluster.String() + "/" + request.Object.Name
}
