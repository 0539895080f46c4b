package main

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// limitCandidate is the lower bound of a drain that uses the eviction API and respects budgets: loops that do nothing else.
var limitCandidate = candidate{
	name: "limit", about: "bare loops that evict when the budget allows a disruption: from the cordon until the last Pod is deleted and the last volume detached",
	runs:     func(o options) int { return o.runs },
	run:      drainByBareLoops,
	requests: func(events controlplane.Events) controlplane.Events { return events.By(limitUser) },
}

// evacuatingCandidate is the limit of a drain by Evacuations, which KEP-4563 asks for.
var evacuatingCandidate = candidate{
	name:     "evacuating",
	about:    "the bare loops, which also create an Evacuation before each eviction; the garbage collector deletes it",
	runs:     func(o options) int { return o.runs },
	run:      evacuateByBareLoops,
	requests: func(events controlplane.Events) controlplane.Events { return events.By(limitUser) },
}

// bareLoops is the number of parallel loops without budgets.
const bareLoops = 20

// bareLoop evicts the Pods that a selector selects.
type bareLoop struct {
	client kubernetes.Interface
	// evacuations creates Evacuations; nil: the loop creates none.
	evacuations client.Client
	pods        string // a label selector
	budget      string // name of their budget; empty: none
	nodes       sets.Set[string]

	waiting []corev1.Pod
	left    sets.Set[types.UID]
	// last is the last evicted Pod. Until the watch shows it among the disrupted Pods, the observed budget is older than that
	// eviction.
	last string
}

func drainByBareLoops(ctx context.Context, a *arena, t target) (span, error) {
	return a.runBareLoops(ctx, t, nil)
}

func evacuateByBareLoops(ctx context.Context, a *arena, t target) (span, error) {
	return a.runBareLoops(ctx, t, a.evacuations)
}

func (a *arena) runBareLoops(ctx context.Context, t target, evacuations client.Client) (span, error) {
	taken := span{started: time.Now()}
	if err := a.cordon(ctx, t.nodes); err != nil {
		return span{}, err
	}
	group, loopCtx := errgroup.WithContext(ctx)
	if a.load.ordered { // the next one starts when the last Pod of the previous one is deleted
		group.SetLimit(1)
	}
	for _, loop := range a.bareLoops(t) {
		loop.evacuations = evacuations
		group.Go(func() error { return loop.run(loopCtx) })
	}
	if err := group.Wait(); err != nil {
		return span{}, err
	}
	if err := a.awaitDetached(ctx, t.nodes); err != nil {
		return span{}, err
	}
	taken.ended = time.Now()
	return taken, nil
}

func (a *arena) cordon(ctx context.Context, nodes []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bareLoops)
	for _, node := range nodes {
		group.Go(func() error {
			cordon := []byte(`{"spec":{"unschedulable":true}}`)
			_, err := a.limit.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, cordon, metav1.PatchOptions{})
			return errors.Wrapf(err, "cordoning Node %s", node)
		})
	}
	return group.Wait()
}

// bareLoops returns a loop for each budget and each order: evictions under one budget are fastest one after the other.
func (a *arena) bareLoops(t target) []*bareLoop {
	nodes := sets.New(t.nodes...)
	if a.load.maxUnavailable == 0 && !a.load.ordered {
		return []*bareLoop{{client: a.limit, pods: appLabel, nodes: nodes}}
	}
	var loops []*bareLoop
	for _, app := range a.load.appNames() {
		loop := &bareLoop{client: a.limit, pods: labels.SelectorFromSet(labelsOf(app)).String(), nodes: nodes}
		if a.load.maxUnavailable > 0 {
			loop.budget = app
		}
		loops = append(loops, loop)
	}
	return loops
}

// run evicts the Pods from the Nodes, and returns when they are deleted.
func (l *bareLoop) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pods, err := l.client.CoreV1().Pods(appNamespace).List(ctx, metav1.ListOptions{LabelSelector: l.pods})
	if err != nil {
		return errors.Wrap(err, "listing pods")
	}
	l.left = sets.New[types.UID]()
	for i := range pods.Items {
		if pod := pods.Items[i]; l.nodes.Has(pod.Spec.NodeName) {
			l.waiting = append(l.waiting, pod)
			l.left.Insert(pod.UID)
		}
	}
	// An API server closes the watch of a client that is too slow for the events of a large drain.
	podEvents, err := watchtools.NewRetryWatcherWithContext(ctx, pods.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = l.pods
			return l.client.CoreV1().Pods(appNamespace).Watch(ctx, options)
		},
	})
	if err != nil {
		return errors.Wrap(err, "watching pods")
	}
	defer podEvents.Stop()
	if l.budget == "" {
		group, groupCtx := errgroup.WithContext(ctx)
		group.Go(func() error { return l.evictAll(groupCtx) })
		group.Go(func() error { return l.await(groupCtx, podEvents, watch.NewFake()) })
		return group.Wait()
	}
	// The watch starts with an event for the current budget.
	thisBudget := fields.OneTermEqualSelector("metadata.name", l.budget).String()
	budgetEvents, err := l.client.PolicyV1().PodDisruptionBudgets(appNamespace).Watch(ctx, metav1.ListOptions{FieldSelector: thisBudget})
	if err != nil {
		return errors.Wrap(err, "watching the budget")
	}
	defer budgetEvents.Stop()
	return l.await(ctx, podEvents, budgetEvents)
}

// await evicts whenever the budget allows a disruption, and returns after the last Pod.
func (l *bareLoop) await(ctx context.Context, pods, budgets watch.Interface) error {
	for l.left.Len() > 0 {
		select {
		case event, open := <-pods.ResultChan():
			if !open {
				return errors.New("the watch of Pods was closed")
			}
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Deleted {
				l.left.Delete(pod.UID)
			}
		case event, open := <-budgets.ResultChan():
			if !open {
				return errors.New("the watch of the budget was closed")
			}
			if budget, ok := event.Object.(*policyv1.PodDisruptionBudget); ok {
				if err := l.use(ctx, budget); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "draining, with %d Pods left", l.left.Len())
		}
	}
	return nil
}

// use evicts as many Pods as the budget allows, one after the other: the API server's conflict retries make parallel evictions under
// one budget slower.
func (l *bareLoop) use(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	if _, seen := budget.Status.DisruptedPods[l.last]; l.last != "" && !seen {
		return nil
	}
	l.last = ""
	for range min(int(budget.Status.DisruptionsAllowed), len(l.waiting)) {
		pod := l.waiting[0]
		err := l.evict(ctx, pod)
		if apierrors.IsTooManyRequests(err) {
			return nil // no disruption is allowed any more: wait for the next event
		}
		if err != nil {
			return errors.Wrapf(err, "evicting pod %s", pod.Name)
		}
		l.waiting, l.last = l.waiting[1:], pod.Name
	}
	return nil
}

// evictAll evicts all Pods in parallel.
func (l *bareLoop) evictAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bareLoops)
	for _, pod := range l.waiting {
		group.Go(func() error { return errors.Wrapf(l.evict(ctx, pod), "evicting pod %s", pod.Name) })
	}
	return group.Wait()
}

func (l *bareLoop) evict(ctx context.Context, pod corev1.Pod) error {
	if l.evacuations != nil {
		e := evacuation.New(&pod, nil, v1alpha1.DefaultProgressDeadlineSeconds)
		e.Finalizers = nil // of an instigator, which would remove it
		if err := l.evacuations.Create(ctx, e); client.IgnoreAlreadyExists(err) != nil {
			return errors.Wrapf(err, "creating the Evacuation of pod %s", pod.Name)
		}
	}
	return l.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
}
