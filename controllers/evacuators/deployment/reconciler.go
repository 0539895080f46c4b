package deployment

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/evacuators/assignment"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Reconciler surges Deployments before their Pods are removed. One reconciliation covers one Deployment.
type Reconciler struct {
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Clock        clock.PassiveClock

	controller controller.TypedController[workload.Request]
	readings   *expiring.Map[types.UID, reading] // by Deployment
	// refused is since when the API server has refused the writes of a surge, by Deployment. After a restart of the manager, it counts again.
	refused *expiring.Map[types.UID, time.Time]
}

// scope is the state of one reconciliation.
type scope struct {
	cluster     types.NamespacedName
	key         types.NamespacedName // of the Deployment
	client      client.Client        // reads what is watched
	live        client.Client
	readings    *expiring.Map[types.UID, reading]
	finder      assignment.Finder
	findAgain   func() (assignment.Finder, error)   // returns the finder of the present connection, an error if the Cluster is paused
	assignments map[types.UID]assignment.Assignment // by Pod
	observed    surge.Observation
}

// Reconcile performs the next action for one Deployment. The event of each write triggers the next reconciliation:
//
//	find its Pods to be evacuated ─► observe the Deployment ─► decide (drain/surge) ─► report and write
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"Deployment", klog.KRef(request.Object.Namespace, request.Object.Name)))
	s := &scope{
		cluster: request.Cluster, key: request.Object, readings: r.readings,
		assignments: map[types.UID]assignment.Assignment{},
	}
	s.findAgain = func() (assignment.Finder, error) { return r.finder(ctx, s.cluster) }
	var err error
	if s.finder, err = s.findAgain(); err != nil {
		return workload.Result(err)
	}
	s.client, s.observed.Now = s.finder.Watched, s.finder.Now
	if s.live, err = r.Clusters.UncachedClient(ctx, request.Cluster); err != nil {
		return workload.Result(err)
	}
	known, err := s.findPodsToReplace(ctx)
	if err != nil {
		return workload.Result(err)
	}
	if !known { // incomplete information could cancel a surge that is still needed
		return reconcile.Result{RequeueAfter: assignment.UnknownInterval}, nil
	}
	if err := s.observe(ctx); err != nil {
		return workload.Result(err)
	}
	decision := surge.Decide(s.observed)
	complete, err := r.apply(ctx, s, decision)
	switch {
	case err != nil:
		return workload.Result(err)
	case !complete:
		return reconcile.Result{RequeueAfter: assignment.RefusedInterval}, nil
	}
	return workload.RequeueAt(decision.RequeueAt, s.observed.Now), nil
}

// apply stores the reports and then writes the decision. Each write fails with a conflict if its object has changed since it was observed.
// It returns complete = false if the API server has refused a report, or if the decision is outdated before the other writes.
func (r *Reconciler) apply(ctx context.Context, s *scope, d surge.Decision) (complete bool, err error) {
	refused, err := r.reportAll(ctx, s, d.Reports)
	if err != nil || !d.IsRecorded(refused) {
		return false, err
	}
	if outdated, err := s.isOutdated(ctx, d); err != nil || outdated {
		return false, err
	}
	complete = len(refused) == 0
	err = r.write(ctx, s, d)
	if len(d.Serves) == 0 {
		return complete, err
	}
	if since := r.refusedSince(s, err); !since.IsZero() {
		if _, err := r.reportAll(ctx, s, d.Refuse(err, since, s.observed.Now)); err != nil {
			return false, err
		}
	}
	return complete, err
}

// finder returns the finder of Pods of Deployments. It returns an error if the Cluster is paused.
func (r *Reconciler) finder(ctx context.Context, cluster types.NamespacedName) (assignment.Finder, error) {
	watched, err := r.Clusters.Client(ctx, cluster)
	return assignment.Finder{
		Watched: watched, Observation: r.Clusters.CurrentObservation(cluster), Class: v1alpha1.EvacuatorClassDeployment,
		Suspension: r.Maintenances.Suspension(ctx, cluster), Now: r.Clock.Now(),
	}, err
}

// isOutdated finds the Pods again just before the decision is written: the requests since they were found may have taken long. It reports
// true also if they are not known.
func (s *scope) isOutdated(ctx context.Context, d surge.Decision) (bool, error) {
	if !d.Writes() {
		return false, nil
	}
	finder, err := s.findAgain()
	if err != nil {
		return false, err
	}
	found, known, err := finder.Find(ctx, s.key.Namespace, s.belongs)
	if err != nil || !known {
		return !known, err //nolint:wrapcheck // it names what was read
	}
	present := map[types.UID]surge.Wait{}
	for _, a := range found {
		present[a.Pod.UID] = surge.Wait{Suspended: a.Suspended, Ended: a.Expired || a.Passed}
	}
	return d.IsOutdated(s.observed, present), nil
}

// refusedTTL is how long it is kept that a write was refused. It must exceed the longest interval between two attempts.
const refusedTTL = 2 * time.Minute

// refusedSince returns since when the API server has refused the writes of a surge, zero if it has not refused this one. An error that is
// no refusal, such as a conflict, neither ends nor begins that time.
func (r *Reconciler) refusedSince(s *scope, err error) (since time.Time) {
	if err != nil && !answers.IsAdmission(err) {
		return time.Time{}
	}
	r.refused.Update(s.cluster, s.observed.Deployment.UID, func(first time.Time, found bool) (time.Time, time.Duration) {
		if err == nil {
			return time.Time{}, 0
		}
		if since = first; !found {
			since = s.observed.Now
		}
		return since, refusedTTL
	})
	return since
}

func (r *Reconciler) reportAll(ctx context.Context, s *scope, reports []surge.Report) (refused []surge.Report, err error) {
	store := func(report surge.Report) error { return r.report(ctx, s, report) }
	return assignment.StoreAll(ctx, r.Clock, reports, store) //nolint:wrapcheck // it names the Evacuation
}

func (r *Reconciler) write(ctx context.Context, s *scope, d surge.Decision) error {
	for _, pod := range d.Mark {
		if err := s.changePod(ctx, s.assignments[pod.UID].Pod, surge.Mark); err != nil {
			return err
		}
	}
	if d.Deployment != nil {
		if err := s.live.Patch(ctx, d.Deployment, optimisticLockOn(s.observed.Deployment)); err != nil {
			return errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching Deployment %s", s.key)
		}
	}
	if d.Autoscaler != nil {
		if err := s.live.Patch(ctx, d.Autoscaler, optimisticLockOn(s.autoscaler(d.Autoscaler.UID))); err != nil {
			return errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching HorizontalPodAutoscaler %s", klog.KObj(d.Autoscaler))
		}
	}
	if d.Event != nil {
		r.recordEvent(ctx, s, d.Event)
	}
	for _, pod := range d.Unmark {
		live, err := s.livePod(ctx, pod)
		if err != nil {
			return err
		}
		if err := s.changePod(ctx, live, surge.Unmark); err != nil {
			return err
		}
	}
	return nil
}

func optimisticLockOn(observed client.Object) client.Patch {
	return client.MergeFromWithOptions(observed, client.MergeFromWithOptimisticLock{})
}

func (r *Reconciler) recordEvent(ctx context.Context, s *scope, event *surge.Event) {
	ctrl.LoggerFrom(ctx).V(2).Info(event.Message, "event", event.Reason)
	surges.WithLabelValues(event.Reason).Inc()
	eventType := corev1.EventTypeNormal
	if event.Warning {
		eventType = corev1.EventTypeWarning
	}
	r.Clusters.Event(s.cluster, s.observed.Deployment, eventType, event.Reason, event.Message)
}

// report stores a report in the status of the Evacuation of a Pod.
func (r *Reconciler) report(ctx context.Context, s *scope, report surge.Report) error {
	assigned := s.assignments[report.Pod]
	if err := s.finder.Report(ctx, assigned, report.Apply); err != nil {
		return err
	}
	if report.Refusal != "" {
		refusals.WithLabelValues(string(report.Refusal)).Inc()
		r.Clusters.Event(s.cluster, assigned.Pod, corev1.EventTypeNormal, eventNotSurged, report.Message)
	}
	return nil
}

// changePod marks or unmarks a Pod. It does nothing if the Pod is nil.
func (s *scope) changePod(ctx context.Context, pod *corev1.Pod, change func(*corev1.Pod)) error {
	if pod == nil {
		return nil
	}
	changed := pod.DeepCopy()
	change(changed)
	err := s.live.Patch(ctx, changed, optimisticLockOn(pod))
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "setting the deletion cost of Pod %s", klog.KObj(pod))
}
