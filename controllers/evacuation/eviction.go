package evacuation

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// overdue is how long the other Pods of a budget wait for the response to the eviction of one of them, so that a slow admission webhook does
// not delay all of them.
const overdue = time.Second

// hung is how long an eviction without a response counts against its budget. A busy API server may take seconds, and meanwhile would refuse
// another eviction. An eviction that hangs in an admission webhook usually gets its response after little more than ten seconds, the default
// timeout of webhooks.
const hung = 15 * time.Second

// startEvictions starts the evictions of the admitted Pods and does not wait for them. It evicts the Pods of one budget sequentially, since conflict
// retries in the API server make concurrent evictions slower, and all others concurrently. A later pass evicts the Pods that exceed the
// limits of concurrent evictions.
func (v *Evictor) startEvictions(ctx context.Context, p *pass, admitted []budgets.Admitted) {
	byBudget := map[*budgets.Budget][]budgets.Admitted{}
	for _, each := range admitted {
		if each.Budget != nil {
			byBudget[each.Budget] = append(byBudget[each.Budget], each)
			continue
		}
		if ended, begun := v.evict(ctx, p, each); begun {
			go func() {
				<-ended
				p.record.inFlight.end(each.Pod.UID)
				v.again(p.cluster)
			}()
		}
	}
	for budget, pods := range byBudget {
		hasPlace := func(each budgets.Admitted) bool { return p.record.inFlight.canReserve(each.Pod.Node) }
		if slices.ContainsFunc(pods, hasPlace) && p.record.inFlight.takeDisruption(nameOf(budget)) {
			go v.evictSequentially(ctx, p, budget, pods)
		}
	}
}

// evictSequentially evicts the Pods of one budget sequentially. The caller has reserved the budget.
func (v *Evictor) evictSequentially(ctx context.Context, p *pass, budget *budgets.Budget, pods []budgets.Admitted) {
	for _, each := range pods {
		ended, begun := v.evict(ctx, p, each)
		if !begun {
			continue
		}
		select {
		case <-ended:
			p.record.inFlight.end(each.Pod.UID)
		case <-v.Clock.After(overdue):
			go func() {
				<-ended
				p.refresh(ctx, budget) // before the eviction ends: until then, the stale status of the budget may not include it
				p.record.inFlight.end(each.Pod.UID)
				v.again(p.cluster)
			}()
		}
	}
	p.refresh(ctx, budget)
	p.record.inFlight.returnDisruption(nameOf(budget))
	v.again(p.cluster)
}

// evict starts one attempt to evict a Pod, unless the manager shuts down or a limit is reached. If begun is true, the caller must call
// inFlight.end once ended is closed.
func (v *Evictor) evict(ctx context.Context, p *pass, admitted budgets.Admitted) (ended <-chan struct{}, begun bool) {
	s := p.subjects[admitted.Pod.UID]
	if !v.lastCalls.begin() {
		return nil, false
	}
	if !p.record.inFlight.start(admitted.Pod, v.Clock.Now()) {
		v.lastCalls.end()
		return nil, false
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Pod", klog.KObj(s.pod), "Node", klog.KRef("", s.pod.Spec.NodeName)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer v.lastCalls.end()
		if admitted.Delete {
			v.handleResponse(ctx, p, s, v.Clusters.DeleteUnchanged(ctx, p.cluster, s.pod, p.gracePeriod(ctx, s.pod)), eventDeletedUnready)
			return
		}
		v.handleResponse(ctx, p, s, v.Clusters.Evict(ctx, p.cluster, s.pod, p.gracePeriod(ctx, s.pod)), eventEvicted)
	}()
	return done, true
}

// handleResponse processes the response to an eviction, or to the deletion that replaces it.
func (v *Evictor) handleResponse(ctx context.Context, p *pass, s *subject, err error, said string) {
	log, now := ctrl.LoggerFrom(ctx), v.Clock.Now()
	switch {
	case err == nil:
		log.V(2).Info("Evicted Pod", "as", said)
		evictions.WithLabelValues(resultEvicted).Inc()
		evacuations.WithLabelValues("eviction").Inc()
		p.record.backOff(s.pod.UID, now.Add(watchLag))
		v.Clusters.Event(p.cluster, s.pod, corev1.EventTypeNormal, said, removed[said]+p.because(ctx, s))
		return
	case workload.IsPaused(err):
		return
	case workload.IsGone(err):
		evictions.WithLabelValues(resultGone).Inc()
		rest := watchLag // until the watch delivers the deletion
		if said == eventDeletedUnready {
			rest = evacuation.Backoff(1) // the Pod may only have changed
		}
		p.record.backOff(s.pod.UID, now.Add(rest))
		return
	}
	why, answered := classify(err)
	if !answered {
		evictions.WithLabelValues(resultError).Inc()
		log.Info("Failed to evict Pod", "err", err.Error())
		p.record.backOff(s.pod.UID, now.Add(evacuation.Backoff(p.record.unanswered(s.pod.UID))))
		return
	}
	log.V(2).Info("Eviction was refused", "reason", why.reason, "message", why.message)
	evictions.WithLabelValues(resultRefused).Inc()
	v.recordRefusal(ctx, p, s, why, now)
}

// because returns the part of the event message on a removed Pod that names the NodeMaintenances or other instigators.
func (p *pass) because(ctx context.Context, s *subject) string {
	node := s.pod.Spec.NodeName
	maintenances, err := workload.MaintenancesOf(ctx, p.client, node)
	if err != nil { // the event omits them
		ctrl.LoggerFrom(ctx).Info("Failed to find the NodeMaintenances of a removed Pod", "err", err.Error())
	}
	var draining []*v1alpha1.NodeMaintenance
	for i := range maintenances {
		m := &maintenances[i]
		if evacuation.Drains(m, node) && rules.NewMatcher(rules.InEffect(&m.Spec)).Decide(planinput.RulePod(p.observation, s.pod)).Behavior == v1alpha1.DrainBehaviorDrain {
			draining = append(draining, m)
		}
	}
	return evacuation.Because(s.evacuation, node, draining)
}

// recordRefusal counts a refused eviction in the status of the Evacuation, reports the reason, and schedules the next attempt after a backoff.
func (v *Evictor) recordRefusal(ctx context.Context, p *pass, s *subject, why refusal, now time.Time) {
	latest := &v1alpha1.Evacuation{} // it may have changed during a long eviction request
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(s.evacuation), latest); err != nil {
		return // the Evacuation was deleted, or the connection is closed
	}
	latest, _ = p.written.latest(p.cluster, latest)
	changed := latest.DeepCopy()
	s.action.Apply(changed, now)
	evacuation.Refused(changed, why.reason, why.message)
	until := now.Add(evacuation.WithJitter(evacuation.Backoff(changed.Status.FailedEvictionCounter), rand.Float64())) //nolint:gosec // jitter is not security-relevant
	p.record.refuse(s.pod.UID, until, why.reason)
	v.Clusters.Event(p.cluster, s.evacuation, corev1.EventTypeWarning, eventEvictionRefused, why.message)
	if err := p.client.Status().Patch(ctx, changed, client.MergeFrom(latest)); err != nil {
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Info("Failed to count a refused eviction", "err", err.Error())
		}
		return
	}
	p.written.record(p.cluster, changed)
}

// gracePeriod returns 1 s for Pods on an unreachable Node, as Cluster API does: no kubelet would wait for the Pod to terminate. It returns
// nil for the grace period of the Pod.
func (p *pass) gracePeriod(ctx context.Context, pod *corev1.Pod) *int64 {
	node := &corev1.Node{}
	if err := p.client.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, node); err == nil && rules.Unreachable(node) {
		return ptr.To(rules.UnreachableGracePeriodSeconds)
	}
	return nil
}

// refresh gets a budget after evictions, to record the version from which on its status includes them. If that fails, an eviction may be
// classify.
func (p *pass) refresh(ctx context.Context, budget *budgets.Budget) {
	live := &policyv1.PodDisruptionBudget{}
	if err := p.live.Get(ctx, nameOf(budget), live); err != nil {
		if client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Info("Failed to get a PodDisruptionBudget", "err", errors.Wrapf(err, "getting %s", budget).Error())
		}
		return
	}
	p.record.observedAtLeast(live.UID, live.ResourceVersion)
}

func nameOf(budget *budgets.Budget) types.NamespacedName {
	return types.NamespacedName{Namespace: budget.Namespace(), Name: budget.Name()}
}
