package evictor

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Reasons of the events that the evictor writes in workload clusters.
const (
	// eventEvicted on a Pod means that it is evicted.
	eventEvicted = "EvictedForMaintenance"
	// eventDeletedUnready on a Pod means that it is deleted, since it is not ready and its budget can never allow a disruption.
	eventDeletedUnready = "DeletedForMaintenance"
	// eventEvictionCompleted on a Pod means that it is deleted, since its budget has granted the disruption to an eviction that was cut off.
	eventEvictionCompleted = "EvictionCompletedForMaintenance"
	// eventEvictionRefused on an Evacuation means that the API server has refused to evict the Pod.
	eventEvictionRefused = "EvictionRefused"
)

// removed contains the prefixes of the messages of events on removed Pods, by reason.
var removed = map[string]string{
	eventEvicted:           "Evicted: ",
	eventDeletedUnready:    "Deleted, because the Pod is not ready and its PodDisruptionBudget can never allow a disruption: ",
	eventEvictionCompleted: "Deleted, because its PodDisruptionBudget has granted the disruption to an eviction that was cut off: ",
}

// slowEviction is how long the other Pods of a budget wait for the response to the eviction of one of them, so that a slow admission
// webhook does not delay all of them.
const slowEviction = time.Second

// unansweredTimeout is how long an eviction without a response counts against its budget. A busy API server may take seconds to respond,
// and would refuse another eviction meanwhile. An eviction that hangs in an admission webhook usually gets its response after little more
// than ten seconds, the default timeout of webhooks.
const unansweredTimeout = 15 * time.Second

// startEvictions starts the evictions of the admitted Pods, in their order, and does not wait for them. It evicts the Pods of one budget
// sequentially, since conflict retries in the API server make concurrent evictions slower, and all others concurrently. A later pass evicts
// the Pods that exceed the limits of concurrent evictions.
func (v *Evictor) startEvictions(ctx context.Context, p *pass, admitted []budgets.Admitted) {
	byBudget := map[*budgets.Budget][]budgets.Admitted{}
	for _, each := range admitted {
		if each.Budget != nil {
			byBudget[each.Budget] = append(byBudget[each.Budget], each)
		}
	}
	for _, each := range admitted {
		switch pods := byBudget[each.Budget]; {
		case len(pods) > 0:
			delete(byBudget, each.Budget) // its other Pods follow in the sequence
			v.startSequence(ctx, p, each.Budget, pods)
		case each.Budget == nil && v.begin(ctx, p, each.Pod):
			go func() {
				v.evict(ctx, p, each)
				v.end(p, each.Pod)
				v.enqueue(p.cluster)
			}()
		}
	}
}

// startSequence starts the evictions of the Pods of one budget. The first one begins before startSequence returns: otherwise, evictions of
// Pods that come later in the pass could use up the limits.
func (v *Evictor) startSequence(ctx context.Context, p *pass, budget *budgets.Budget, pods []budgets.Admitted) {
	if !p.state.inFlight.reserveBudget(nameOf(budget)) {
		return
	}
	first := slices.IndexFunc(pods, func(each budgets.Admitted) bool {
		return p.state.inFlight.allows(each.Pod) && p.isStillDue(ctx, p.subjects[each.Pod.UID], v.Clock.Now()) && v.begin(ctx, p, each.Pod)
	})
	if first < 0 {
		p.state.inFlight.releaseBudget(nameOf(budget))
		p.requeueAt(p.now.Add(nodeRetry)) // if a Node could not be read, no event follows
		return
	}
	go func() {
		v.evictSequentially(ctx, p, budget, pods[first:])
		p.refresh(ctx, budget)
		p.state.inFlight.releaseBudget(nameOf(budget))
		v.enqueue(p.cluster)
	}()
}

// evictSequentially evicts the Pods of one budget, each after the response to the one before, or after slowEviction. The first one has
// begun. For many Pods, this may take much longer than the pass: it skips Pods whose evictions are no longer due, and all that follow if
// the budget refuses one within slowEviction.
func (v *Evictor) evictSequentially(ctx context.Context, p *pass, budget *budgets.Budget, pods []budgets.Admitted) {
	for i, each := range pods {
		if i > 0 && (!p.isStillDue(ctx, p.subjects[each.Pod.UID], v.Clock.Now()) || !v.begin(ctx, p, each.Pod)) {
			continue
		}
		begun, ended := v.Clock.Now(), make(chan struct{})
		go func() {
			defer close(ended)
			v.evict(ctx, p, each)
			late := v.Clock.Since(begun) >= slowEviction
			if late {
				p.refresh(ctx, budget) // before v.end: the version that is recorded after the last Pod may not include this eviction
			}
			v.end(p, each.Pod)
			if late {
				v.enqueue(p.cluster)
			}
		}()
		select {
		case <-ended:
			if reason := p.state.backoffs.refusal(each.Pod.UID); reason == v1alpha1.ReasonDisruptionBudgetRefused || reason == v1alpha1.ReasonDisruptionBudgetUpdating {
				return // the API server would refuse the others, too, apart from Pods that are not ready: a later pass evicts these
			}
		case <-v.Clock.After(slowEviction):
		}
	}
}

// begin adds an in-flight eviction. It returns false if the manager shuts down, a limit is reached, or the Pod has a backoff or has lost a
// budget: another eviction of it may have ended since the pass collected it, and its budget may have been deleted. If begin returns true,
// the caller must call end after the response.
func (v *Evictor) begin(ctx context.Context, p *pass, pod budgets.Pod) bool {
	if !v.shutdown.begin() {
		return false
	}
	now := v.Clock.Now()
	if !p.state.inFlight.begin(pod, now) {
		v.shutdown.end()
		return false
	}
	if now.Before(p.backoffOf(ctx, p.subjects[pod.UID])) { // the backoff is set before an eviction ends
		v.end(p, pod)
		return false
	}
	if _, until := p.pausedBy(ctx, pod, now); !until.IsZero() { // the event of the budget or the Pod enqueues the workload cluster
		v.end(p, pod)
		return false
	}
	cluster, inFlight := p.cluster, p.state.inFlight
	v.Clock.AfterFunc(budgets.EvictionHangsAfter, func() {
		if inFlight.hang(pod.UID, now) { // the limits may allow the eviction of others
			v.enqueue(cluster)
		}
	})
	return true
}

func (v *Evictor) end(p *pass, pod budgets.Pod) {
	p.state.inFlight.end(pod.UID)
	v.shutdown.end()
}

// evict sends the eviction of a Pod, or the deletion that replaces it, and handles the response. After a wait for the rate limit, it sends
// nothing if the Pod is no longer to be evicted or has lost a budget.
func (v *Evictor) evict(ctx context.Context, p *pass, admitted budgets.Admitted) {
	s := p.subjects[admitted.Pod.UID]
	waited, err := v.Clusters.AwaitEviction(ctx, p.cluster)
	if err != nil {
		v.handleResponse(ctx, p, s, err, eventEvicted)
		return
	}
	if now := v.Clock.Now(); waited {
		if _, until := p.pausedBy(ctx, admitted.Pod, now); !until.IsZero() || !p.isStillDue(ctx, s, now) {
			return
		}
	}
	if admitted.Budget != nil && !admitted.Granted {
		if took, known := p.state.reactions.send(admitted.Budget, v.Clock.Now()); known {
			reactionSeconds.Observe(took.Seconds())
		}
	}
	_, seconds := p.gracePeriod(ctx, s.pod)
	s.requested = v.Clock.Now()
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Pod", klog.KObj(s.pod), "Node", klog.KRef("", s.pod.Spec.NodeName)))
	if admitted.Delete {
		v.handleResponse(ctx, p, s, v.Clusters.DeleteUnchanged(ctx, p.cluster, s.pod, seconds), eventDeletedUnready)
		return
	}
	if admitted.Granted {
		v.completeEviction(ctx, p, s, admitted, seconds)
		return
	}
	v.handleResponse(ctx, p, s, v.Clusters.Evict(ctx, p.cluster, s.pod, seconds), eventEvicted)
}

// completeEviction deletes a Pod whose disruption the API server has granted, if its budget still says so: an entry that the disruption
// controller has dropped permits no deletion.
func (v *Evictor) completeEviction(ctx context.Context, p *pass, s *subject, admitted budgets.Admitted, seconds *int64) {
	live := &policyv1.PodDisruptionBudget{}
	log, err := ctrl.LoggerFrom(ctx), p.live.Get(ctx, nameOf(admitted.Budget), live)
	if err != nil || !budgets.New(live).Grants(admitted.Pod, v.Clock.Now()) {
		if answers.IgnoreDoesNotExist(err) != nil {
			log.Error(err, "Failed to get the PodDisruptionBudget that granted the disruption of the Pod", "PodDisruptionBudget",
				klog.KRef(admitted.Budget.Namespace(), admitted.Budget.Name()))
		} else {
			log.V(2).Info("The PodDisruptionBudget no longer grants the disruption of the Pod")
		}
		p.state.backoffs.backOff(s.pod.UID, v.Clock.Now().Add(evacuation.Backoff(1)))
		return
	}
	v.handleResponse(ctx, p, s, v.Clusters.DeleteUnchanged(ctx, p.cluster, s.pod, seconds), eventEvictionCompleted)
}

// handleResponse processes the response to an eviction, or to the deletion that replaces it.
func (v *Evictor) handleResponse(ctx context.Context, p *pass, s *subject, err error, reason string) {
	log, now := ctrl.LoggerFrom(ctx), v.Clock.Now()
	switch {
	case err == nil:
		log.V(2).Info("Evicted Pod", "reason", reason)
		evictions.WithLabelValues(resultEvicted).Inc()
		workload.CountEviction()
		v.Recorder.RecordEvicted(p.cluster, s.pod.UID, now)
		p.state.backoffs.backOff(s.pod.UID, now.Add(watchLag))
		v.Clusters.Event(p.cluster, s.pod, corev1.EventTypeNormal, reason, removed[reason]+p.because(ctx, s))
		return
	case workload.IsPaused(err):
		return
	case answers.IsGone(err):
		evictions.WithLabelValues(resultGone).Inc()
		backoff := watchLag // until the watch delivers the deletion
		if reason != eventEvicted {
			backoff = evacuation.Backoff(1) // the Pod may only have changed
		}
		p.state.backoffs.backOff(s.pod.UID, now.Add(backoff))
		return
	}
	why, answered := classify(err)
	if !answered {
		evictions.WithLabelValues(resultError).Inc()
		log.Error(err, "Failed to evict Pod")
		p.state.backoffs.fail(s.pod.UID, now.Add(evacuation.Backoff(p.state.backoffs.countFailed(s.pod.UID))), now)
		return
	}
	log.V(2).Info("Eviction was refused", "reason", why.reason, "message", why.message)
	evictions.WithLabelValues(resultRefused).Inc()
	v.recordRefusal(ctx, p, s, why, now)
}

// because returns the part of the event message on a removed Pod that names the NodeMaintenances or other instigators.
func (p *pass) because(ctx context.Context, s *subject) string {
	drains, err := p.drainsNow(ctx, s.pod.Spec.NodeName)
	if err != nil { // the event omits them
		ctrl.LoggerFrom(ctx).Error(err, "Failed to find the NodeMaintenances of a removed Pod")
	}
	return evacuation.Because(s.evacuation, s.pod.Spec.NodeName, drains.Draining(planinput.RulePod(p.observation, s.pod)))
}

// recordRefusal counts a refused eviction in the status of the Evacuation, reports the reason, and schedules the next attempt after a
// backoff.
func (v *Evictor) recordRefusal(ctx context.Context, p *pass, s *subject, why refusal, now time.Time) {
	// The backoff is that of the Pod: it stays if another Evacuation is created for it.
	response := evacuation.Refusal{Reason: why.reason, RetryAfter: why.retryAfter, Took: now.Sub(s.requested)}
	p.state.backoffs.refuse(s.pod, response, rand.Float64(), now) //nolint:gosec // jitter is not security-relevant
	// The Evacuation may have changed during a long eviction request.
	observed, key := &v1alpha1.Evacuation{}, client.ObjectKeyFromObject(s.evacuation)
	if err := p.client.Get(ctx, key, observed); err != nil || observed.UID != s.evacuation.UID {
		return // the Evacuation was deleted, also if it was created again, or the connection is closed
	}
	latest, _ := p.written.Latest(p.cluster, observed)
	v.Clusters.Event(p.cluster, s.evacuation, corev1.EventTypeWarning, eventEvictionRefused, why.message)
	err := p.reportRefusal(ctx, latest, why, now)
	if answers.IsConflict(err) { // the watch lags, and the next attempt may be minutes away
		live := &v1alpha1.Evacuation{}
		if err = p.live.Get(ctx, key, live); err == nil && live.UID == s.evacuation.UID {
			err = p.reportRefusal(ctx, live, why, now)
		}
	}
	if answers.IgnoreDoesNotExist(err) != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to count a refused eviction in the status of the Evacuation", "Evacuation", klog.KObj(s.evacuation))
	}
}

// reportRefusal patches the status of an Evacuation after a refused eviction. An evacuator may be active by now, or about to be activated.
// So the patch says that eviction is next only if it still is, and conflicts if the Evacuation has changed.
func (p *pass) reportRefusal(ctx context.Context, latest *v1alpha1.Evacuation, why refusal, now time.Time) error {
	changed := latest.DeepCopy()
	if s := p.evictionOf(ctx, latest, now); s != nil {
		s.action.Apply(changed, now)
	}
	evacuation.Refused(changed, why.reason, why.message, now)
	err := p.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(latest, client.MergeFromWithOptimisticLock{}))
	if err == nil {
		p.written.RecordWritten(p.cluster, changed)
	}
	return err //nolint:wrapcheck // the caller says what failed
}

// gracePeriod returns the time that an evicted Pod has to terminate, and the grace period of the request, see rules.RequestedGracePeriod.
func (p *pass) gracePeriod(ctx context.Context, pod *corev1.Pod) (period time.Duration, seconds *int64) {
	node := &corev1.Node{}
	err := p.client.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, node, client.UnsafeDisableDeepCopy)
	return rules.RequestedGracePeriod(pod, err == nil && rules.Unreachable(node))
}

// refresh gets a budget after evictions, to record the version from which on its status includes them. If that fails, the API server may
// refuse an eviction.
func (p *pass) refresh(ctx context.Context, budget *budgets.Budget) {
	live := &policyv1.PodDisruptionBudget{}
	if err := p.live.Get(ctx, nameOf(budget), live); err != nil {
		if answers.IgnoreDoesNotExist(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to get PodDisruptionBudget", "PodDisruptionBudget", klog.KRef(budget.Namespace(), budget.Name()))
		}
		return
	}
	p.state.inFlight.awaitBudget(live.UID, live.ResourceVersion, p.clock.Now())
}

func nameOf(budget *budgets.Budget) types.NamespacedName {
	return types.NamespacedName{Namespace: budget.Namespace(), Name: budget.Name()}
}
