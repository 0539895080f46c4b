package machine

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// reportFailure runs after each reconciliation of a deleted Machine. If any step has failed, reportFailure releases the Machine once its
// deadline is exceeded, and reports a persistent failure on its condition.
func (r *Reconciler) reportFailure(ctx context.Context, s *scope, result reconcile.Result, err error) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(s.machine)
	if workload.IsNotConnected(err) || workload.IsPaused(err) {
		err, result = nil, reconcile.Result{} // the next connection, or the end of the pause, triggers a reconciliation
	}
	failure := r.failures.Record(key, err, s.now)
	if err == nil {
		return result, nil
	}
	waiting := outcome{verdict: wait, reason: v1alpha1.ReasonReconcileFailed, message: machinedrain.FailureMessage(err), at: failure.ReportAt()}
	if failure.Persists(s.now) { // a transient failure does not replace the condition of a wait for a turn or for volumes
		waiting.at = s.now.Add(referencedTTL)
		if s.expired(&waiting) {
			return r.release(ctx, s, s.result())
		}
		if _, reportErr := r.report(ctx, s, waiting); reportErr != nil {
			ctrl.LoggerFrom(ctx).Error(reportErr, "Failed to report the failure of the drain")
		}
	} else if noteErr := r.recordClock(ctx, s); noteErr != nil {
		ctrl.LoggerFrom(ctx).Error(noteErr, "Failed to note the start of the drain")
	}
	r.retryAfter(key, max(waiting.at.Sub(s.now), time.Millisecond))
	return reconcile.Result{}, err
}

// maintenanceFailure returns the persistent error of the reconciliation of the Machine's NodeMaintenance, nil if there is none. It returns
// nil if the API server does not answer: contact reports that.
func (r *Reconciler) maintenanceFailure(ctx context.Context, s *scope) error {
	if r.Clusters.HealthState(ctx, s.clusterKey()).ConsecutiveFailures > 0 {
		return nil
	}
	request := workload.Request{Cluster: s.clusterKey(), Object: types.NamespacedName{Name: s.maintenance.Name}}
	if failure := r.Clusters.Failures.Get(request); failure.Persists(s.now) {
		return failure.Err
	}
	return nil
}

// keepQueue stores the work queue, so that a Machine whose deadline precedes the end of its backoff can be reconciled in time.
func (r *Reconciler) keepQueue(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.retryAfter = func(machine types.NamespacedName, after time.Duration) {
		queue.AddAfter(reconcile.Request{NamespacedName: machine}, after)
	}
	return nil
}
