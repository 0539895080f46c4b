package evacuation

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
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

// passing is how long a budget may be unobserved before it is said.
const passing = 5 * time.Second

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

// pass is one look at all Pods of a workload cluster that are to be evicted.
type pass struct {
	cluster     types.NamespacedName
	client      client.Client // reads Evacuations and Nodes from watches
	live        client.Client
	observation remote.Observation
	record      *record
	pdbs        []*policyv1.PodDisruptionBudget
	now         time.Time
	subjects    map[types.UID]*subject
	stale       map[string]bool // budgets, by namespace/name
	mu          sync.Mutex
	nextTry     time.Time // when to look again if no event comes before, zero: never
}

// subject is one Pod to be evicted, and why.
type subject struct {
	evacuation *v1alpha1.Evacuation
	pod        *corev1.Pod
	action     evacuation.Action
}

// status returns the Evacuation as it is to be stored, with the turn of the eviction in it. The reconciler leaves that to the
// evictor, so that the turn and what it waits for are one write.
func (s *subject) status(now time.Time) *v1alpha1.Evacuation {
	changed := s.evacuation.DeepCopy()
	s.action.Apply(changed, now)
	return changed
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

// collect finds the Pods whose turn of eviction it is, as drain/evacuation says.
func (p *pass) collect(ctx context.Context) ([]budgets.Candidate, error) {
	evacuations := &v1alpha1.EvacuationList{}
	if err := p.client.List(ctx, evacuations); err != nil {
		return nil, errors.Wrap(err, "listing Evacuations")
	}
	var candidates []budgets.Candidate
	live := map[types.UID]bool{}
	for i := range evacuations.Items {
		e := &evacuations.Items[i]
		pod, found := p.observation.PodByUID(types.UID(e.Spec.PodRef.UID))
		if !found {
			continue
		}
		podType, known := rules.PodTypeOf(pod, p.observation.DaemonSetExists)
		if !known {
			continue
		}
		resolved, _ := evacuation.Resolve(evacuation.Subject{Annotations: pod.Annotations, BuiltIn: evacuation.BuiltIn(podType)})
		action := evacuation.Next(evacuation.Input{
			Evacuation: e, Pod: evacuation.ObservedPod(e.Spec.PodRef, pod, podType), ResolvedEvacuators: resolved, Now: p.now,
		})
		if action.Kind != evacuation.Evict {
			continue
		}
		live[pod.UID] = true
		if p.record.accepted(pod.UID) {
			continue // its deletionTimestamp is on its way
		}
		if until, wait := p.record.backsOff(pod.UID, p.now); wait {
			p.tryAgainAt(until)
			continue
		}
		p.subjects[pod.UID] = &subject{evacuation: e, pod: pod, action: action}
		candidates = append(candidates, budgets.Candidate{Pod: budgets.Pod{
			UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName,
			Labels: pod.Labels, Ready: isReady(pod), Phase: pod.Status.Phase,
		}})
	}
	p.record.keep(live)
	return candidates, nil
}

func (p *pass) tryAgainAt(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nextTry.IsZero() || t.Before(p.nextTry) {
		p.nextTry = t
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
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
		p.record.accept(s.pod.UID)
		v.Clusters.Event(p.cluster, s.pod, corev1.EventTypeNormal, eventEvicted, "Evicted, since Node "+s.pod.Spec.NodeName+" is drained")
		return nil
	case remote.IsGone(err):
		evictions.WithLabelValues(resultGone).Inc()
		p.record.accept(s.pod.UID) // the Pod's last event is on its way
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
	p.record.refuse(s.pod.UID, until)
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

// refresh reads a budget once after evictions under it, to know from which version on the watch has them in.
func (p *pass) refresh(ctx context.Context, budget *budgets.Budget) error {
	if budget == nil {
		return nil
	}
	live := &policyv1.PodDisruptionBudget{}
	key := types.NamespacedName{Namespace: budget.Namespace(), Name: budget.Name()}
	if err := p.live.Get(ctx, key, live); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "getting PodDisruptionBudget %s", key)
	}
	p.record.observedAtLeast(live.UID, live.ResourceVersion)
	return nil
}

// report says on each Evacuation why its Pod waits, where that has changed, and counts.
func (p *pass) report(ctx context.Context, waiting []budgets.Waiting) error {
	reasons := map[budgets.Reason]int{}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelEvictions)
	for _, each := range waiting {
		reasons[each.Reason]++
		s := p.subjects[each.Pod.UID]
		changed := s.status(p.now)
		evacuation.Waiting(changed, each.Message)
		if changed.Status.Message == s.evacuation.Status.Message || p.isPassing(each) {
			continue
		}
		group.Go(func() error {
			err := p.client.Status().Patch(groupCtx, changed, client.MergeFrom(s.evacuation))
			return errors.Wrapf(client.IgnoreNotFound(err), "saying why Pod %s waits", klog.KObj(s.pod))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	podsBlocked.DeletePartialMatch(map[string]string{"cluster_namespace": p.cluster.Namespace, "cluster": p.cluster.Name})
	for reason, count := range reasons {
		podsBlocked.WithLabelValues(p.cluster.Namespace, p.cluster.Name, string(reason)).Set(float64(count))
	}
	return nil
}

// isPassing says whether a Pod waits for nothing but our own evictions to show, or for the disruption controller to catch up
// with an edit: moments that aren't worth a write. What lasts is told.
func (p *pass) isPassing(waiting budgets.Waiting) bool {
	if waiting.Reason != budgets.BudgetNotObserved {
		return false
	}
	if p.stale[waiting.Budget] {
		return true
	}
	tellAt := p.subjects[waiting.Pod.UID].evacuation.CreationTimestamp.Add(passing)
	if p.now.Before(tellAt) {
		p.tryAgainAt(tellAt)
		return true
	}
	return false
}

// isStale notes the budgets whose room isn't known because of our own evictions.
func (p *pass) isStale(pdb *policyv1.PodDisruptionBudget) bool {
	stale := p.record.isStale(pdb)
	p.stale[pdb.Namespace+"/"+pdb.Name] = stale
	return stale
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
