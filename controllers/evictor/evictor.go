package evictor

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// Evictor evicts Pods as PodDisruptionBudgets allow. One reconciliation covers one workload cluster.
type Evictor struct {
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Written      *expectations.Objects[*v1alpha1.Evacuation]
	Recorder     *tracing.Recorder
	Clock        clock.WithDelayedExecution

	controller      controller.TypedController[reconcile.Request]
	evictionContext context.Context //nolint:containedctx // for evictions, which outlive the reconciliation that starts them, see shutdownGate
	shutdown        *shutdownGate
	enqueue         func(types.NamespacedName) // enqueues a workload cluster

	mu     sync.Mutex
	states map[types.NamespacedName]*state
}

// state is what the evictor keeps of one workload cluster between passes. It is not required for correctness: without it, after a restart,
// evictions may be refused that would not have been requested.
type state struct {
	inFlight        *inFlightEvictions
	backoffs        *backoffs // of evictions
	reports         *backoffs // of status patches, after those that failed
	reactions       *reactions
	pauses          *pauses
	signals         *signaling
	reportedReasons map[string]bool // reasons for which the metric of blocked Pods has a series; used by one pass at a time
	holders         budgets.Holders // used by one pass at a time
}

func newState() *state {
	return &state{
		inFlight: newInFlightEvictions(), backoffs: newBackoffs(), reports: newBackoffs(), reactions: newReactions(), pauses: newPauses(), signals: newSignaling(),
		reportedReasons: map[string]bool{},
	}
}

// SetupWithManager adds the evictor to the manager.
func (v *Evictor) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	v.states, v.shutdown = map[types.NamespacedName]*state{}, &shutdownGate{clock: v.Clock}
	if err := mgr.Add(v.shutdown); err != nil {
		return errors.Wrap(err, "setting up the evictor")
	}
	options.Reconciler = workload.RetryConflicts[reconcile.Request](v)
	var err error
	if v.controller, err = controller.New("evictor", mgr, options); err != nil {
		return errors.Wrap(err, "setting up the evictor")
	}
	err = v.controller.Watch(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		v.evictionContext = context.WithoutCancel(ctx)
		v.enqueue = func(cluster types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: cluster}) }
		v.Clusters.Subscribe(func(change workload.Change) {
			if change.Budget != nil {
				v.receive(change.Cluster, change.Budget)
			}
			switch change.Type {
			case workload.VolumesChanged, workload.DrainConfirmed, workload.PodsWaiting: // affect no eviction
			default:
				v.enqueue(change.Cluster)
			}
		})
		return nil
	}))
	return errors.Wrap(err, "setting up the evictor")
}

// Watches returns the watches of a workload cluster's Evacuations, and of NodeMaintenances for changes of their terms and for cordoned
// Nodes.
func (v *Evictor) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	enqueue := func(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		queue.Add(reconcile.Request{NamespacedName: cluster})
	}
	return []clustercache.Watcher{
		workload.Watch("evictor-Evacuations", v.controller, &v1alpha1.Evacuation{}, handler.TypedFuncs[*v1alpha1.Evacuation, reconcile.Request]{
			CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*v1alpha1.Evacuation], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				enqueue(queue)
			},
			UpdateFunc: func(_ context.Context, _ event.TypedUpdateEvent[*v1alpha1.Evacuation], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				enqueue(queue)
			},
		}),
		workload.Watch("evictor-NodeMaintenances", v.controller, &v1alpha1.NodeMaintenance{},
			handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, *v1alpha1.NodeMaintenance) []reconcile.Request {
				return []reconcile.Request{{NamespacedName: cluster}}
			}), workload.Changed(mayEvictMore)),
	}
}

// mayEvictMore reports whether a change of a NodeMaintenance changes its terms, or its condition Cordoned to true.
func mayEvictMore(before, after *v1alpha1.NodeMaintenance) bool {
	cordoned := func(m *v1alpha1.NodeMaintenance) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned)
	}
	return evacuation.TermsChanged(before, after) || before != nil && after != nil && cordoned(after) && !cordoned(before)
}

// Reconcile evicts the Pods of one workload cluster that may be evicted now:
//
//	collect the Pods ─► admit the Pods that the budgets allow (drain/budgets) ─► start their evictions ─► report why the others wait
//
// New Evacuations wait while Nodes are about to be cordoned. Reconcile does not wait for responses to evictions: each response enqueues the
// workload cluster again.
func (v *Evictor) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Namespace, request.Name)))
	p := &pass{
		cluster: request.NamespacedName, clock: v.Clock, now: v.Clock.Now(), written: v.Written,
		subjects: map[types.UID]*subject{}, requested: map[string]requested{}, blocked: map[string]int{},
	}
	if p.observation = v.Clusters.CurrentObservation(p.cluster); p.observation == nil {
		return v.disconnect(p.cluster, p.now), nil
	}
	p.state = v.stateOf(p.cluster)
	if p.state.inFlight.isFull() {
		return reconcile.Result{}, nil // an in-flight eviction that gets its response, or hangs, enqueues the workload cluster
	}
	observed, known := p.observation.Budgets()
	if !known && p.observation.BudgetsServed() {
		return reconcile.Result{}, nil // a Change enqueues the workload cluster when they are known
	}
	var err error
	if p.client, err = v.Clusters.Client(ctx, p.cluster); err != nil {
		return v.fail(p, err)
	}
	if p.live, err = v.Clusters.UncachedClient(ctx, p.cluster); err != nil {
		return v.fail(p, err)
	}
	p.nextTry = p.state.inFlight.observeBudgets(observed, p.now)
	suspension := v.Maintenances.Suspension(ctx, p.cluster)
	p.suspended = suspension.Of
	if p.deleted, err = v.Maintenances.DeletedMachines(ctx, p.cluster); err != nil {
		return v.fail(p, err)
	}
	candidates, err := p.collect(ctx)
	if err != nil {
		return v.fail(p, err)
	}
	if err := suspension.Err(); err != nil { // it delays no Pods of other Machines
		klog.FromContext(ctx).Error(err, "Failed to find out whether the NodeMaintenance of a drained Node is suspended")
		p.requeueAt(p.now.Add(nodeRetry))
	}
	waiting := budgets.Unserved(candidates)
	var paused []budgets.Waiting
	if known {
		var admitted []budgets.Admitted
		index := budgets.IndexOf(observed, p.state.inFlight.isStale)
		candidates, paused = p.separatePaused(ctx, candidates)
		admitted, waiting = index.AdmitWithin(budgets.OldestFirst(append(candidates, p.expected()...)), p.state.inFlight.free)
		p.state.reactions.observePass(p.now, admitted, waiting)
		p.nameHolders(index, admitted, waiting)
		granted, others, retryAt := index.Granted(waiting, p.now)
		if waiting = others; !retryAt.IsZero() {
			p.requeueAt(retryAt)
		}
		evictionContext := ctrl.LoggerInto(v.evictionContext, ctrl.LoggerFrom(ctx))
		v.startEvictions(evictionContext, p, append(admitted, granted...))
		v.startSignals(evictionContext, p, index, waiting)
	}
	v.Clusters.SetWaiting(p.cluster, p.observation, p.waitingAtFinalAttempt(ctx, waiting))
	p.report(ctx, append(waiting, paused...))
	return workload.RequeueAt(p.nextTry, p.now), nil
}

// fail ends a pass that could not evaluate the Pods, because their Cluster is paused for example: then no Pod waits for its eviction.
func (v *Evictor) fail(p *pass, err error) (reconcile.Result, error) {
	if workload.IsPaused(err) {
		p.state.observeBlocked(p.cluster, nil)
	}
	v.Clusters.SetWaiting(p.cluster, p.observation, nil)
	return workload.Result(err)
}

// receive records the event of a budget for the metric of reactions.
func (v *Evictor) receive(cluster types.NamespacedName, budget *policyv1.PodDisruptionBudget) {
	now := v.Clock.Now()
	v.mu.Lock()
	s := v.states[cluster]
	v.mu.Unlock()
	if s != nil {
		s.reactions.receive(budget, now)
	}
}

func (v *Evictor) stateOf(cluster types.NamespacedName) *state {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.states[cluster] == nil {
		v.states[cluster] = newState()
	}
	return v.states[cluster]
}

// disconnect drops the state of a workload cluster in which no Pods are observed, once no eviction is in flight, no Pod waits for a
// backoff, and no signal was sent in the last signals.Interval. It keeps the state until then, since Pods are not observed for a short time
// after a pause either, and are the same afterwards.
func (v *Evictor) disconnect(cluster types.NamespacedName, now time.Time) reconcile.Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	podsBlocked.DeletePartialMatch(map[string]string{"cluster_namespace": cluster.Namespace, "cluster": cluster.Name})
	s := v.states[cluster]
	if s == nil || len(s.inFlight.all()) > 0 { // the response to an in-flight eviction enqueues the workload cluster
		return reconcile.Result{}
	}
	until := s.backoffs.last()
	if signaled := s.signals.last(); until.Before(signaled) {
		until = signaled
	}
	if now.Before(until) {
		return reconcile.Result{RequeueAfter: until.Sub(now)}
	}
	delete(v.states, cluster)
	return reconcile.Result{}
}
