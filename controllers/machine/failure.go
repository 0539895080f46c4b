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
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/machines"
)

// reportFailure is where each reconciliation of a deleted Machine ends. Where it has failed, whatever the step, the Machine is released
// when its time is up, and its condition says what has failed once that has lasted.
func (r *Reconciler) reportFailure(ctx context.Context, s *scope, result reconcile.Result, err error) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(s.machine)
	if remote.IsNotConnected(err) || remote.IsPaused(err) {
		err, result = nil, reconcile.Result{} // the next connection, or the end of the pause, is an event
	}
	failure := r.failures.Note(key, err, s.now)
	if err == nil {
		return result, nil
	}
	waiting := outcome{verdict: wait, reason: v1alpha1.ReasonReconcileFailed, message: machines.FailureMessage(err), at: failure.ToldAt()}
	if failure.Persists(s.now) { // one that passes doesn't end the wait for a turn, or for volumes
		waiting.at = s.now.Add(referencedTTL)
		if s.expired(&waiting) {
			return r.release(ctx, s, s.result())
		}
		if _, reportErr := r.report(ctx, s, waiting); reportErr != nil {
			ctrl.LoggerFrom(ctx).Error(reportErr, "Failed to report the failure of the drain")
		}
	} else if noteErr := r.noteClock(ctx, s); noteErr != nil {
		ctrl.LoggerFrom(ctx).Error(noteErr, "Failed to note the start of the drain")
	}
	r.retryAfter(key, max(waiting.at.Sub(s.now), time.Millisecond))
	return reconcile.Result{}, err
}

// maintenanceFailure is why the NodeMaintenance of the Machine has not been reconciled for a while, nil if it has. Where the API server
// does not answer, that is told by contact.
func (r *Reconciler) maintenanceFailure(ctx context.Context, s *scope) error {
	if r.Clusters.LastContact(ctx, s.clusterKey()).ConsecutiveFailures > 0 {
		return nil
	}
	request := remote.Request{Cluster: s.clusterKey(), Object: types.NamespacedName{Name: s.maintenance.Name}}
	if failure := r.Clusters.Failures.Get(request); failure.Persists(s.now) {
		return failure.Err
	}
	return nil
}

// keepQueue keeps the queue, for Machines whose deadline comes before the backoff of a failed step is over.
func (r *Reconciler) keepQueue(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.retryAfter = func(machine types.NamespacedName, after time.Duration) {
		queue.AddAfter(reconcile.Request{NamespacedName: machine}, after)
	}
	return nil
}
