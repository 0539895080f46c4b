package evacuation

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// parallelEvictions is how many evictions run at once in one workload cluster. Those under the same budget run one after the
// other: the API server's conflict retries make parallel ones slower.
const parallelEvictions = 16

// Evictor evicts Pods, for one workload cluster at a time.
type Evictor struct {
	Clusters *remote.Clusters
	Clock    clock.PassiveClock

	controller controller.TypedController[reconcile.Request]

	mu      sync.Mutex
	records map[types.NamespacedName]*record
}

// SetupWithManager adds the evictor to the manager.
func (v *Evictor) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	v.records = map[types.NamespacedName]*record{}
	options.Reconciler = v
	var err error
	if v.controller, err = controller.New("evictor", mgr, options); err != nil {
		return errors.Wrap(err, "setting up the evictor")
	}
	err = v.controller.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		v.Clusters.Subscribe(func(change remote.Change) { queue.Add(reconcile.Request{NamespacedName: change.Cluster}) })
		return nil
	}))
	return errors.Wrap(err, "setting up the evictor")
}

// Watch adds the watch of a workload cluster's Evacuations.
func (v *Evictor) Watch(ctx context.Context, cache clustercache.ClusterCache, cluster types.NamespacedName) error {
	enqueue := func(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		queue.Add(reconcile.Request{NamespacedName: cluster})
	}
	return cache.Watch(ctx, cluster, clustercache.NewWatcher(clustercache.TypedWatcherOptions[*v1alpha1.Evacuation, reconcile.Request]{
		Name:    "evictor-Evacuations",
		Watcher: v.controller,
		Kind:    &v1alpha1.Evacuation{},
		EventHandler: handler.TypedFuncs[*v1alpha1.Evacuation, reconcile.Request]{
			CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*v1alpha1.Evacuation], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				enqueue(queue)
			},
			UpdateFunc: func(_ context.Context, _ event.TypedUpdateEvent[*v1alpha1.Evacuation], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				enqueue(queue)
			},
		},
	}))
}

// Reconcile evicts what may be evicted now in one workload cluster:
//
//	collect the Pods ─► ask drain/budgets who may go ─► evict them ─► say why the others wait
func (v *Evictor) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Namespace, request.Name)))
	p := &pass{cluster: request.NamespacedName, now: v.Clock.Now(), subjects: map[types.UID]*subject{}, stale: map[string]bool{}}
	if p.observation = v.Clusters.Observed(p.cluster); p.observation == nil {
		v.forget(p.cluster)
		return reconcile.Result{}, nil
	}
	pdbs, known := p.observation.Budgets()
	if !known {
		return reconcile.Result{}, nil // a Change tells when
	}
	var err error
	if p.client, err = v.Clusters.Client(ctx, p.cluster); err != nil {
		return remote.Rest(err)
	}
	if p.live, err = v.Clusters.Live(ctx, p.cluster); err != nil {
		return remote.Rest(err)
	}
	p.pdbs, p.record = pdbs, v.recordOf(p.cluster)
	candidates, err := p.collect(ctx)
	if err != nil {
		return remote.Rest(err)
	}
	admitted, waiting := budgets.NewIndex(p.pdbs, p.isStale).Admit(budgets.FairOrder(candidates))
	if err := v.evictAll(ctx, p, admitted); err != nil {
		return remote.Rest(err)
	}
	if err := p.report(ctx, waiting); err != nil {
		return remote.Rest(err)
	}
	if p.nextTry.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(p.nextTry.Sub(p.now), time.Millisecond)}, nil
}

// evictAll evicts the admitted Pods: those of one budget one after the other, the rest side by side.
func (v *Evictor) evictAll(ctx context.Context, p *pass, admitted []budgets.Admitted) error {
	var byBudget [][]budgets.Admitted
	position := map[*budgets.Budget]int{}
	for _, each := range admitted {
		if at, known := position[each.Budget]; known && each.Budget != nil {
			byBudget[at] = append(byBudget[at], each)
			continue
		}
		position[each.Budget] = len(byBudget)
		byBudget = append(byBudget, []budgets.Admitted{each})
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelEvictions)
	for _, pods := range byBudget {
		group.Go(func() error {
			for _, each := range pods {
				if err := v.evict(groupCtx, p, p.subjects[each.Pod.UID]); err != nil {
					return err
				}
			}
			return p.refresh(groupCtx, pods[0].Budget)
		})
	}
	return errors.Wrapf(group.Wait(), "evicting Pods in Cluster %s", p.cluster)
}

// evict tries to evict one Pod, once.
func (v *Evictor) evict(ctx context.Context, p *pass, s *subject) error {
	log := ctrl.LoggerFrom(ctx, "Pod", klog.KObj(s.pod), "Node", klog.KRef("", s.pod.Spec.NodeName))
	err := v.Clusters.Evict(ctx, p.cluster, s.pod, p.gracePeriod(ctx, s.pod))
	switch {
	case err == nil:
		log.V(2).Info("Evicted Pod")
		evictions.WithLabelValues(resultEvicted).Inc()
		evacuations.WithLabelValues("eviction").Inc()
		p.record.rest(s.pod.UID, p.now.Add(watchLag))
		v.Clusters.Event(p.cluster, s.pod, corev1.EventTypeNormal, eventEvicted, "Evicted, since Node "+s.pod.Spec.NodeName+" is drained")
		return nil
	case remote.IsGone(err):
		evictions.WithLabelValues(resultGone).Inc()
		p.record.rest(s.pod.UID, p.now.Add(watchLag)) // the Pod's last event is on its way
		return nil
	case !isAnswer(err):
		evictions.WithLabelValues(resultError).Inc()
		return errors.Wrapf(err, "evicting Pod %s", klog.KObj(s.pod))
	}
	why := refusal(err)
	log.V(2).Info("Eviction was refused", "why", why)
	evictions.WithLabelValues(resultRefused).Inc()
	changed := s.status(p.now)
	evacuation.Refused(changed, why)
	until := p.now.Add(evacuation.WithJitter(evacuation.Backoff(changed.Status.FailedEvictionCounter), rand.Float64())) //nolint:gosec // jitter isn't a secret
	p.record.rest(s.pod.UID, until)
	p.tryAgainAt(until)
	v.Clusters.Event(p.cluster, s.evacuation, corev1.EventTypeWarning, eventEvictionRefused, why)
	err = p.client.Status().Patch(ctx, changed, client.MergeFrom(s.evacuation))
	return errors.Wrapf(client.IgnoreNotFound(err), "counting the refused eviction of Pod %s", klog.KObj(s.pod))
}

// gracePeriod is 1 s for Pods on a Node that doesn't answer: no kubelet is there to let them end in their own time, and
// Cluster API does the same. Nil: the Pod's own.
func (p *pass) gracePeriod(ctx context.Context, pod *corev1.Pod) *int64 {
	node := &corev1.Node{}
	if err := p.client.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, node); err == nil && rules.Unreachable(node) {
		return ptr.To(rules.UnreachableGracePeriodSeconds)
	}
	return nil
}

func (v *Evictor) recordOf(cluster types.NamespacedName) *record {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.records[cluster] == nil {
		v.records[cluster] = newRecord()
	}
	return v.records[cluster]
}

func (v *Evictor) forget(cluster types.NamespacedName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.records, cluster)
	podsBlocked.DeletePartialMatch(map[string]string{"cluster_namespace": cluster.Namespace, "cluster": cluster.Name})
}
