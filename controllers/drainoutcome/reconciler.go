// Package drainoutcome keeps the recent drains of deleted Machines in the status of their MachineDrainPolicies, with what became of their
// evicted Pods, by the decisions of drain/outcome.
package drainoutcome

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

const (
	// maxDrains and maxApplications are the limits of v1alpha1.MachineDrainPolicyStatus.RecentDrains and of the applications in all of them.
	// An application may have more than 2 kB, and the API server stores no object of more than 1.5 MB.
	maxDrains, maxApplications = 16, 256
	// maxAwaited and maxAwaitedApplications limit what is kept in memory of a policy: drains that are not in its status yet, and those beyond
	// its limits while the next drain waits for them.
	maxAwaited, maxAwaitedApplications = 512, 4096
)

// keptComplete is how long after the end of a drain it is known that it is complete: no drain waits longer for it.
const keptComplete = time.Hour

// Reconciler keeps the recent drains in the status of MachineDrainPolicies, and reads what became of their Pods.
type Reconciler struct {
	Client   client.Client
	Clusters *workload.Clusters
	Filter   machinedrain.WatchFilter
	Recorder *tracing.Recorder // optional
	Clock    clock.PassiveClock

	events record.EventRecorder

	mu    sync.Mutex
	ended map[types.NamespacedName][]v1alpha1.RecentDrain // by policy, until they are in its status, or beyond its limits and not awaited
	// complete has the ends of drains that were complete, by the UIDs of their Machines. The status drops these drains first.
	complete map[string]time.Time
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	r.events = mgr.GetEventRecorderFor("node-maintenance-outcome") //nolint:staticcheck // CAPI's own controllers record core events, which kubectl describe shows
	err := ctrl.NewControllerManagedBy(mgr).
		Named("drainoutcome").
		For(&v1alpha1.MachineDrainPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(r.keepQueue)).
		WithOptions(options).
		Complete(workload.RetryConflicts[reconcile.Request](r))
	return errors.Wrap(err, "setting up the drain outcome controller")
}

// keepQueue stores the work queue, and enqueues the policies of drains that have ended before.
func (r *Reconciler) keepQueue(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = queue
	for policy := range r.ended {
		queue.Add(reconcile.Request{NamespacedName: policy})
	}
	return nil
}

// Record adds a drain that has ended to those of a policy.
func (r *Reconciler) Record(policy types.NamespacedName, drain v1alpha1.RecentDrain) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.ended = map[types.NamespacedName][]v1alpha1.RecentDrain{}
	}
	r.ended[policy] = outcome.Keep(append(r.ended[policy], drain), maxAwaited, maxAwaitedApplications)
	r.noteComplete([]v1alpha1.RecentDrain{drain})
	if r.queue != nil {
		r.queue.Add(reconcile.Request{NamespacedName: policy})
	}
}

// recorded returns copies of the drains of a policy that are not known to be in its status. If what is read of them cannot be stored, the
// next reading begins with the same numbers.
func (r *Reconciler) recorded(policy types.NamespacedName) []v1alpha1.RecentDrain {
	r.mu.Lock()
	defer r.mu.Unlock()
	copies := make([]v1alpha1.RecentDrain, len(r.ended[policy]))
	for i := range copies {
		r.ended[policy][i].DeepCopyInto(&copies[i])
	}
	return copies
}

// forget drops the drains that a reconciliation has stored or dropped, but for those that the next drain waits for. Others may have been
// recorded meanwhile.
func (r *Reconciler) forget(policy types.NamespacedName, stored, awaited []v1alpha1.RecentDrain) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := slices.DeleteFunc(r.ended[policy], func(drain v1alpha1.RecentDrain) bool { return has(stored, drain) || has(awaited, drain) })
	if left = append(left, awaited...); len(left) == 0 {
		delete(r.ended, policy)
		return
	}
	r.ended[policy] = outcome.Keep(left, maxAwaited, maxAwaitedApplications)
}

func has(drains []v1alpha1.RecentDrain, drain v1alpha1.RecentDrain) bool {
	return slices.ContainsFunc(drains, func(of v1alpha1.RecentDrain) bool { return of.MachineUID == drain.MachineUID })
}

// noteComplete remembers which drains are complete. The caller holds the lock.
func (r *Reconciler) noteComplete(drains []v1alpha1.RecentDrain) {
	now := r.Clock.Now()
	maps.DeleteFunc(r.complete, func(_ string, end time.Time) bool { return now.Sub(end) >= keptComplete })
	for i := range drains {
		if drain := &drains[i]; now.Sub(drain.EndTime.Time) < keptComplete && outcome.IsComplete(&drain.DrainOutcome) {
			if r.complete == nil {
				r.complete = map[string]time.Time{}
			}
			r.complete[drain.MachineUID] = drain.EndTime.Time
		}
	}
}

// IsComplete reports whether it is known that the drain of a Machine with a UID has been complete, see outcome.IsComplete, although the
// status of the policy may have dropped it since.
func (r *Reconciler) IsComplete(machine string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, complete := r.complete[machine]
	return complete
}

// forgetPolicy drops what is kept of a policy that does not exist.
func (r *Reconciler) forgetPolicy(policy types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ended, policy)
	tracing.ObserveWithoutPlace(sourceOf(policy), nil)
}

// Reconcile adds the drains that have ended to the status of a policy, and reads what became of the Pods when that is due.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	policy, now := &v1alpha1.MachineDrainPolicy{}, r.Clock.Now()
	if err := r.Client.Get(ctx, request.NamespacedName, policy); err != nil {
		if answers.DoesNotExist(err) {
			r.forgetPolicy(request.NamespacedName)
		}
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "getting MachineDrainPolicy %s", request.NamespacedName)
	}
	ended := r.recorded(request.NamespacedName)
	drains := merge(policy.DeepCopy().Status.RecentDrains, ended)
	responsible, err := r.responsible(ctx, policy.Namespace, drains)
	if err != nil {
		return reconcile.Result{}, err
	}
	before := slices.Clone(drains)
	for i := range drains {
		before[i].DrainOutcome = *drains[i].DrainOutcome.DeepCopy()
	}
	r.read(ctx, policy, drains, responsible, now)
	r.mu.Lock()
	r.noteComplete(drains)
	r.mu.Unlock()
	stored, err := r.store(ctx, request.NamespacedName, slices.DeleteFunc(slices.Clone(drains), func(of v1alpha1.RecentDrain) bool {
		return !responsible[of.Cluster] && !has(ended, of)
	}))
	if err != nil {
		return reconcile.Result{}, err
	}
	awaited := slices.DeleteFunc(slices.Clone(drains), func(of v1alpha1.RecentDrain) bool {
		isAwaited := outcome.IsAwaited(&of.DrainOutcome, machinedrain.ReplacementTimeout(policy), now)
		return !isAwaited || !responsible[of.Cluster] || has(stored, of)
	})
	r.forget(request.NamespacedName, ended, awaited)
	r.report(ctx, policy, before, drains, responsible, now)
	return next(policy, slices.Concat(stored, awaited), responsible, now), nil
}

// store adds drains to the status of a policy, or replaces them there unless it has a later reading, within its limits. It
// returns those that the status has then. It gets the policy again: a reading takes up to ten seconds, and the status of a policy whose
// Machines are deleted changes every second. With the policy from before, each patch would end in a conflict, and the reading would be
// repeated.
func (r *Reconciler) store(ctx context.Context, key types.NamespacedName, drains []v1alpha1.RecentDrain) ([]v1alpha1.RecentDrain, error) {
	policy := &v1alpha1.MachineDrainPolicy{}
	if err := r.Client.Get(ctx, key, policy); err != nil {
		return nil, errors.Wrapf(client.IgnoreNotFound(err), "getting MachineDrainPolicy %s", key)
	}
	changed := policy.DeepCopy()
	drains = slices.DeleteFunc(drains, func(of v1alpha1.RecentDrain) bool {
		return slices.ContainsFunc(policy.Status.RecentDrains, isLaterReadingOf(of, r.Clock.Now()))
	})
	changed.Status.RecentDrains = outcome.Keep(merge(changed.Status.RecentDrains, drains), maxDrains, maxApplications)
	kept := slices.Clone(changed.Status.RecentDrains)
	if apiequality.Semantic.DeepEqual(policy.Status.RecentDrains, kept) {
		return kept, nil
	}
	err := r.Client.Status().Patch(ctx, changed, client.MergeFromWithOptions(policy, client.MergeFromWithOptimisticLock{}))
	return kept, errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching the recent drains of MachineDrainPolicy %s", key)
}

// isLaterReadingOf returns a function that reports whether a drain is the same one, read later: the cache was stale when this one was read.
// A reading in the future is of a manager whose clock was ahead, and not later.
func isLaterReadingOf(drain v1alpha1.RecentDrain, now time.Time) func(v1alpha1.RecentDrain) bool {
	return func(of v1alpha1.RecentDrain) bool {
		isSame, read := of.MachineUID == drain.MachineUID && of.EndTime.Equal(&drain.EndTime), of.ReadTime
		return isSame && read != nil && !read.After(now) && (drain.ReadTime == nil || drain.ReadTime.Before(read))
	}
}

// merge adds drains that have ended, the last one first.
func merge(present, ended []v1alpha1.RecentDrain) []v1alpha1.RecentDrain {
	for _, drain := range ended {
		present = slices.DeleteFunc(present, func(of v1alpha1.RecentDrain) bool { return of.MachineUID == drain.MachineUID })
		present = append(present, drain)
	}
	slices.SortStableFunc(present, func(a, b v1alpha1.RecentDrain) int { return b.EndTime.Compare(a.EndTime.Time) })
	return present
}

// responsible returns the Clusters of drains that this manager reconciles. Managers with different watch labels share policies. Outcomes in
// a Cluster that does not exist any more are not read either: its Pods do not exist.
func (r *Reconciler) responsible(ctx context.Context, namespace string, drains []v1alpha1.RecentDrain) (map[string]bool, error) {
	all := map[string]bool{}
	for _, drain := range drains {
		if _, known := all[drain.Cluster]; known {
			continue
		}
		cluster := &clusterv1.Cluster{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: drain.Cluster}, cluster)
		if client.IgnoreNotFound(err) != nil {
			return nil, errors.Wrapf(err, "getting Cluster %s", drain.Cluster)
		}
		all[drain.Cluster] = err == nil && r.Filter.Selects(cluster)
	}
	return all, nil
}

// read reads the Clusters with outcomes that are due, concurrently: one that does not answer delays no other one.
func (r *Reconciler) read(
	ctx context.Context, policy *v1alpha1.MachineDrainPolicy, drains []v1alpha1.RecentDrain, responsible map[string]bool, now time.Time,
) {
	timeout := machinedrain.ReplacementTimeout(policy)
	byCluster, due := map[string][]*v1alpha1.DrainOutcome{}, map[string]bool{}
	for i := range drains {
		of := &drains[i]
		if responsible[of.Cluster] {
			byCluster[of.Cluster] = append(byCluster[of.Cluster], &of.DrainOutcome)
			due[of.Cluster] = due[of.Cluster] || outcome.Due(&of.DrainOutcome, now) || outcome.DueForTurn(&of.DrainOutcome, timeout, now)
		}
	}
	var reading sync.WaitGroup
	for cluster, outcomes := range byCluster {
		if !due[cluster] {
			continue
		}
		reading.Go(func() {
			key := types.NamespacedName{Namespace: policy.Namespace, Name: cluster}
			outcome.Read(r.Clusters.ReadControllers(ctx, key, outcome.Controllers(outcomes...)), now, outcomes...)
		})
	}
	reading.Wait()
}

// report logs and exports what has changed, sets the metric, and writes an event for each drain after which Pods have no place.
func (r *Reconciler) report(ctx context.Context, policy *v1alpha1.MachineDrainPolicy, before, drains []v1alpha1.RecentDrain, responsible map[string]bool,
	now time.Time,
) {
	pods := map[types.NamespacedName]int32{}
	for i := range drains {
		drain := &drains[i]
		if !responsible[drain.Cluster] {
			continue
		}
		cluster := types.NamespacedName{Namespace: policy.Namespace, Name: drain.Cluster}
		without := outcome.WithoutPlace(&drain.DrainOutcome, now)
		pods[cluster] += without // 0, too: the series exists since the first drain of a Cluster
		r.Recorder.RecordOutcome(history.Trace{
			Root: types.UID(drain.MachineUID), Cluster: cluster, Machine: drain.Machine, Node: drain.Node,
		}, &before[i].DrainOutcome, &drain.DrainOutcome)
		if before[i].Pods != drain.Pods {
			ctrl.LoggerFrom(ctx).Info("Read what became of the evicted Pods of a drain", "Cluster", klog.KRef(cluster.Namespace, cluster.Name),
				"Machine", klog.KRef(policy.Namespace, drain.Machine), "Node", klog.KRef("", drain.Node), "pods", outcome.Summary(drain.Pods),
				"afterEnd", now.Sub(drain.EndTime.Time).Round(time.Second).String())
		}
		if without > 0 && outcome.WithoutPlace(&before[i].DrainOutcome, now) == 0 {
			where := fmt.Sprintf("Node %s (Machine %s, Cluster %s)", drain.Node, drain.Machine, drain.Cluster)
			r.events.Event(policy, corev1.EventTypeWarning, outcome.EventPodsWithoutPlace, outcome.WithoutPlaceMessage(&drain.DrainOutcome, where))
		}
	}
	tracing.ObserveWithoutPlace(sourceOf(types.NamespacedName{Namespace: policy.Namespace, Name: policy.Name}), pods)
}

func sourceOf(policy types.NamespacedName) string { return "MachineDrainPolicy " + policy.String() }

// next returns when the outcomes are read next.
func next(policy *v1alpha1.MachineDrainPolicy, drains []v1alpha1.RecentDrain, responsible map[string]bool, now time.Time) reconcile.Result {
	var at time.Time
	for i := range drains {
		of := &drains[i]
		if !responsible[of.Cluster] {
			continue
		}
		for _, next := range []time.Time{
			outcome.Next(&of.DrainOutcome, now), outcome.NextForTurn(&of.DrainOutcome, machinedrain.ReplacementTimeout(policy), now),
		} {
			if !next.IsZero() && (at.IsZero() || next.Before(at)) {
				at = next
			}
		}
	}
	return workload.RequeueAt(at, now)
}
