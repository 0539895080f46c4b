package main

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// limitCandidate is as fast as a drain can be that asks the eviction API and respects budgets: a loop that does nothing else.
var limitCandidate = candidate{
	name: "limit", about: "a bare loop that evicts when the budget has room: cordon to last pod gone",
	runs:     func(o options) int { return o.runs },
	run:      drainByBareLoop,
	requests: func(events controlplane.Events) controlplane.Events { return events.By(limitUser) },
}

// bareLoop evicts the pods of one node that are under one budget.
type bareLoop struct {
	client  kubernetes.Interface
	waiting []corev1.Pod
	left    sets.Set[types.UID]
	// last is the pod that was evicted last. Until the watch shows it among the disrupted ones, what the watch shows is older
	// than that eviction, and its room has been used.
	last string
}

func drainByBareLoop(ctx context.Context, a *arena, t target) (span, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	onNode := fields.OneTermEqualSelector("spec.nodeName", t.node).String()
	thisBudget := fields.OneTermEqualSelector("metadata.name", appName).String()

	taken := span{started: time.Now()}
	cordon := []byte(`{"spec":{"unschedulable":true}}`)
	if _, err := a.limit.CoreV1().Nodes().Patch(ctx, t.node, types.MergePatchType, cordon, metav1.PatchOptions{}); err != nil {
		return span{}, errors.Wrapf(err, "cordoning Node %s", t.node)
	}
	pods, err := a.limit.CoreV1().Pods(appNamespace).List(ctx, metav1.ListOptions{FieldSelector: onNode})
	if err != nil {
		return span{}, errors.Wrap(err, "listing pods")
	}
	podEvents, err := a.limit.CoreV1().Pods(appNamespace).Watch(ctx, metav1.ListOptions{FieldSelector: onNode, ResourceVersion: pods.ResourceVersion})
	if err != nil {
		return span{}, errors.Wrap(err, "watching pods")
	}
	defer podEvents.Stop()
	// It begins with an event of the budget as it is.
	budgetEvents, err := a.limit.PolicyV1().PodDisruptionBudgets(appNamespace).Watch(ctx, metav1.ListOptions{FieldSelector: thisBudget})
	if err != nil {
		return span{}, errors.Wrap(err, "watching the budget")
	}
	defer budgetEvents.Stop()

	loop := &bareLoop{client: a.limit, waiting: pods.Items, left: sets.New[types.UID]()}
	for i := range pods.Items {
		loop.left.Insert(pods.Items[i].UID)
	}
	if err := loop.drain(ctx, podEvents, budgetEvents); err != nil {
		return span{}, err
	}
	taken.ended = time.Now()
	return taken, nil
}

func (l *bareLoop) drain(ctx context.Context, pods, budgets watch.Interface) error {
	for l.left.Len() > 0 {
		select {
		case event, open := <-pods.ResultChan():
			if !open {
				return errors.New("the watch of the pods has ended")
			}
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Deleted {
				l.left.Delete(pod.UID)
			}
		case event, open := <-budgets.ResultChan():
			if !open {
				return errors.New("the watch of the budget has ended")
			}
			if budget, ok := event.Object.(*policyv1.PodDisruptionBudget); ok {
				if err := l.use(ctx, budget); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "draining, with %d pods left", l.left.Len())
		}
	}
	return nil
}

// use evicts as many pods as the budget has room for, one after the other: the API server's conflict retries make parallel
// evictions under one budget slower.
func (l *bareLoop) use(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	if _, seen := budget.Status.DisruptedPods[l.last]; l.last != "" && !seen {
		return nil
	}
	l.last = ""
	for range min(int(budget.Status.DisruptionsAllowed), len(l.waiting)) {
		pod := l.waiting[0]
		err := l.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
		})
		if apierrors.IsTooManyRequests(err) {
			return nil // no room after all; the next event tells
		}
		if err != nil {
			return errors.Wrapf(err, "evicting pod %s", pod.Name)
		}
		l.waiting, l.last = l.waiting[1:], pod.Name
	}
	return nil
}
