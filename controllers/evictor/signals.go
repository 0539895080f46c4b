package evictor

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
)

const (
	// receiversInterval is how often the webhook configurations are read while Pods wait for budgets. No watch delivers them.
	receiversInterval = 30 * time.Second
	// receiversFresh is how old they may be when a signal is sent: the webhook may have been removed.
	receiversFresh = 5 * time.Second
	// receiversTimeout limits the time to read them.
	receiversTimeout = 10 * time.Second
	// maxConfigurations is the maximum number of webhook configurations that one request reads.
	maxConfigurations = 500
)

// signaling is what the evictor keeps of the signals in one workload cluster, see package signals.
type signaling struct {
	mu   sync.Mutex
	sent map[types.UID]signals.Sent
	// reasons are those of the budgets, of Pods whose signals are in flight.
	reasons map[types.UID]string

	reading   sync.Mutex        // held while the webhook configurations are read
	receivers signals.Receivers // those that were last read
	known     bool              // they were read, and could be read the last time
	readAt    time.Time         // the last time that they were read, or could not be read; zero: never
	isReading bool              // a read that a pass has started
}

func newSignaling() *signaling {
	return &signaling{sent: map[types.UID]signals.Sent{}, reasons: map[types.UID]string{}}
}

// all returns the last signals.
func (s *signaling) all() map[types.UID]signals.Sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.sent)
}

func (s *signaling) begin(pod signals.Pod, reason string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[pod.UID], s.reasons[pod.UID] = signals.Sent{At: now, Budget: pod.Budget, InFlight: true}, reason
}

func (s *signaling) end(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.sent[pod]
	last.InFlight = false
	s.sent[pod] = last
	delete(s.reasons, pod)
}

// reason returns why the budget of a Pod whose signal is in flight refuses its eviction, "" if none is in flight.
func (s *signaling) reason(pod types.UID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reasons[pod]
}

// prune deletes the records that no longer defer a signal, of Pods that are not live.
func (s *signaling) prune(live map[types.UID]bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.sent, func(pod types.UID, last signals.Sent) bool {
		return !live[pod] && !last.InFlight && !now.Before(last.At.Add(signals.Interval))
	})
}

// last returns when no record has an effect any more, or zero.
func (s *signaling) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last time.Time
	for _, sent := range s.sent {
		if until := sent.At.Add(signals.Interval); last.Before(until) {
			last = until
		}
	}
	return last
}

// read returns the receivers that were last read. known is false if none were, or if they could not be read the last time.
func (s *signaling) read() (receivers signals.Receivers, known bool, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receivers, s.known, s.readAt
}

func (s *signaling) setRead(receivers signals.Receivers, known bool, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receivers, s.known, s.readAt = receivers, known, at
}

// startRead reports whether a pass has to read the receivers. If it returns true, the caller must call endRead.
func (s *signaling) startRead(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isReading || !s.readAt.IsZero() && now.Sub(s.readAt) < receiversInterval {
		return false
	}
	s.isReading = true
	return true
}

// readAgainAt returns when a pass has to read the receivers again, zero while they are read: the end of the read enqueues the workload
// cluster.
func (s *signaling) readAgainAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isReading {
		return time.Time{}
	}
	return s.readAt.Add(receiversInterval)
}

func (s *signaling) endRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isReading = false
}

// startSignals requests evictions of waiting Pods that their budgets refuse, if admission webhooks receive the requests. It adds to the
// messages of these Pods which webhooks do.
func (v *Evictor) startSignals(ctx context.Context, p *pass, index *budgets.Index, waiting []budgets.Waiting) {
	var pods []signals.Pod
	refused := map[types.UID]budgets.Waiting{}
	for i := range waiting {
		w := &waiting[i]
		if !index.Refuses(w.Pod) {
			continue
		}
		receivers, known := v.receivers(ctx, p)
		if len(receivers) == 0 {
			return
		}
		names := p.receiversOf(receivers, w.Pod)
		if len(names) == 0 {
			continue
		}
		if w.Message = signals.Message(w.Message, names); known {
			pods, refused[w.Pod.UID] = append(pods, signals.Pod{UID: w.Pod.UID, Budget: w.Budget, DrainStart: w.DrainStart, NeverAllows: w.NeverAllowsDisruption}), *w
		}
	}
	due, at := signals.Next(pods, p.state.signals.all(), p.now)
	if !at.IsZero() {
		p.requeueAt(at)
	}
	for _, pod := range due {
		w := refused[pod.UID]
		if !v.begin(ctx, p, w.Pod) {
			continue
		}
		p.state.signals.begin(pod, string(w.Reason), v.Clock.Now())
		go func() {
			v.signal(ctx, p, index, w.Pod)
			p.state.signals.end(pod.UID)
			v.end(p, w.Pod)
			v.enqueue(p.cluster)
		}()
	}
}

// receivers returns the webhooks that receive eviction requests, as they were last read, and whether no read has failed since. It starts to
// read them if that was long ago.
func (v *Evictor) receivers(ctx context.Context, p *pass) (_ signals.Receivers, known bool) {
	if p.state.signals.startRead(p.now) {
		go func() {
			v.readReceivers(ctx, p)
			p.state.signals.endRead()
			v.enqueue(p.cluster)
		}()
	}
	if at := p.state.signals.readAgainAt(); !at.IsZero() {
		p.requeueAt(at)
	}
	receivers, known, _ := p.state.signals.read()
	return receivers, known
}

// receiversOf returns those of the webhooks that wait for the eviction requests of a Pod, none if the labels of its Namespace are not
// known.
func (p *pass) receiversOf(receivers signals.Receivers, pod budgets.Pod) []string {
	labels, known := p.observation.NamespaceLabels(pod.Namespace)
	if !known {
		return nil
	}
	return receivers.Of(labels, p.terms[pod.Node].EvictionWebhooks)
}

// readReceivers reads which webhooks receive eviction requests, unless that was read a moment ago. If that is not possible, no signal is
// sent.
func (v *Evictor) readReceivers(ctx context.Context, p *pass) signals.Receivers {
	s := p.state.signals
	s.reading.Lock()
	defer s.reading.Unlock()
	last, known, at := s.read()
	if known && v.Clock.Since(at) < receiversFresh {
		return last
	}
	ctx, cancel := context.WithTimeout(ctx, receiversTimeout)
	defer cancel()
	validating, mutating := &admissionregistrationv1.ValidatingWebhookConfigurationList{}, &admissionregistrationv1.MutatingWebhookConfigurationList{}
	var receivers signals.Receivers
	for _, list := range []client.ObjectList{validating, mutating} {
		for more := true; more; more = list.GetContinue() != "" {
			if err := p.live.List(ctx, list, client.Limit(maxConfigurations), client.Continue(list.GetContinue())); err != nil {
				const message = "Failed to read which admission webhooks receive eviction requests; sending none that a PodDisruptionBudget refuses"
				ctrl.LoggerFrom(ctx).Error(errors.Wrap(err, "listing webhook configurations"), message)
				s.setRead(last, false, v.Clock.Now())
				return nil
			}
			receivers = append(receivers, signals.ReceiversOf(validating.Items, mutating.Items)...)
		}
		validating.Items = nil
	}
	s.setRead(receivers, true, v.Clock.Now())
	return receivers
}

// signal sends the eviction of a Pod that its budget refuses, if that is still the case and the Pod would be evicted otherwise. If the API
// server evicts the Pod all the same, because its budget has just changed, that is an eviction like any other.
func (v *Evictor) signal(ctx context.Context, p *pass, index *budgets.Index, pod budgets.Pod) {
	s := p.subjects[pod.UID]
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Pod", klog.KObj(s.pod), "Node", klog.KRef("", s.pod.Spec.NodeName)))
	_, err := v.Clusters.AwaitEviction(ctx, p.cluster)
	if err == nil {
		if !v.maySignal(ctx, p, index, s, pod) {
			return
		}
		_, seconds := p.gracePeriod(ctx, s.pod)
		err = v.Clusters.Evict(ctx, p.cluster, s.pod, seconds)
	}
	if workload.IsPaused(err) || answers.IsGone(err) {
		v.handleResponse(ctx, p, s, err, eventEvicted)
		return
	}
	why, answered := refusal{}, false
	if err != nil {
		why, answered = classify(err)
	}
	if !answered || why.reason == v1alpha1.ReasonNoResponse { // the API server may have used a disruption
		for _, budget := range index.Covering(pod) {
			p.refresh(ctx, budget) // before the eviction ends: until then, it counts against the budget
		}
	}
	switch {
	case err == nil:
		v.handleResponse(ctx, p, s, nil, eventEvicted)
	case !answered:
		evictions.WithLabelValues(resultError).Inc()
		ctrl.LoggerFrom(ctx).Error(err, "Failed to signal the eviction of the Pod")
	default:
		evictions.WithLabelValues(resultSignal).Inc()
		ctrl.LoggerFrom(ctx).V(2).Info("Signaled the eviction of the Pod to admission webhooks", "reason", why.reason, "message", why.message)
	}
}

// maySignal reports whether a webhook still receives the eviction requests of a Pod, its budgets still refuse them, and the Pod would be
// evicted otherwise.
func (v *Evictor) maySignal(ctx context.Context, p *pass, index *budgets.Index, s *subject, pod budgets.Pod) bool {
	if len(p.receiversOf(v.readReceivers(ctx, p), pod)) == 0 || !p.isStillRefused(ctx, index, pod) {
		return false
	}
	_, lost := p.observation.LossOf(pod)
	return !lost && p.isStillDue(ctx, s, v.Clock.Now())
}

// isStillRefused reports whether the budgets of a Pod still refuse its eviction, according to the API server: a budget that was deleted,
// recreated or changed since is decided about when its event has arrived. Two budgets are enough to refuse.
func (p *pass) isStillRefused(ctx context.Context, index *budgets.Index, pod budgets.Pod) bool {
	var live []*policyv1.PodDisruptionBudget
	covering := index.Covering(pod)
	for _, budget := range covering[:min(2, len(covering))] {
		pdb := &policyv1.PodDisruptionBudget{}
		if err := p.live.Get(ctx, nameOf(budget), pdb); err != nil {
			if answers.IgnoreDoesNotExist(err) != nil {
				ctrl.LoggerFrom(ctx).Error(err, "Failed to get PodDisruptionBudget", "PodDisruptionBudget", klog.KRef(budget.Namespace(), budget.Name()))
			}
			return false
		}
		if pdb.UID != budget.PodDisruptionBudget().UID {
			return false
		}
		live = append(live, pdb)
	}
	return budgets.NewIndex(live, nil).Refuses(pod)
}
