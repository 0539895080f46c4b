package evictor

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func podNamed(name, version string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: version},
		Spec:       corev1.PodSpec{NodeName: "one"},
	}
}

func TestBackoffs(t *testing.T) {
	t.Run("defers the next eviction of a Pod until a time, since an event may be lost", func(t *testing.T) {
		b := newBackoffs()
		if until := b.of("a"); !until.IsZero() {
			t.Error("a Pod that was not evicted is deferred")
		}
		b.backOff("a", now.Add(watchLag))
		if until := b.of("a"); !until.Equal(now.Add(watchLag)) {
			t.Errorf("deferred until %s", until)
		}
	})
	t.Run("E38: drops a Pod that is not live after its backoff", func(t *testing.T) {
		b := newBackoffs()
		b.backOff("a", now.Add(time.Minute))
		b.backOff("b", now.Add(time.Minute))
		b.prune(map[types.UID]bool{"b": true}, now)
		if b.of("a").IsZero() {
			t.Error("its Machine may be paused, and its eviction not observed yet")
		}
		b.prune(map[types.UID]bool{"b": true}, now.Add(time.Minute))
		if len(b.until) != 1 {
			t.Errorf("%d Pods are deferred", len(b.until))
		}
	})
	t.Run("M29: keeps the reason of a refusal until a later eviction is accepted, or the Pod is gone", func(t *testing.T) {
		b := newBackoffs()
		refused := evacuation.Refusal{Reason: "AdmissionRefused"}
		b.refuse(podNamed("a", "1"), refused, 0, now)
		b.refuse(podNamed("b", "1"), refused, 0, now)
		if got := b.refusal("a"); got != "AdmissionRefused" {
			t.Errorf("got %q", got)
		}
		b.backOff("a", now.Add(watchLag))
		b.prune(map[types.UID]bool{"a": true}, now.Add(time.Second))
		if b.refusal("a") != "" || b.refusal("b") != "" {
			t.Error("the reason is kept")
		}
	})
}

func TestBackoffsOfRefusals(t *testing.T) {
	webhook, budget := evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, evacuation.Refusal{Reason: v1alpha1.ReasonDisruptionBudgetRefused}
	// retry attempts the eviction whenever its backoff has ended, each time with the Pod as pod returns it, and returns the last backoff.
	retry := func(b *backoffs, now *time.Time, refusals int, response evacuation.Refusal, pod func(i int) *corev1.Pod) time.Duration {
		var last time.Duration
		for i := range refusals {
			b.refuse(pod(i), response, 0, *now)
			until := b.of("a")
			if changed, effective := b.afterChange(pod(i + 1)); effective && changed.Before(until) {
				until = changed
			}
			last = until.Sub(*now)
			*now = until
		}
		return last
	}
	same := func(int) *corev1.Pod { return podNamed("a", "1") }
	other := func(i int) *corev1.Pod { return podNamed("a", strconv.Itoa(i)) }
	t.Run("E65: a webhook that opens after 20 minutes is called within 30 s, and a budget within 1 s after that", func(t *testing.T) {
		b, now, opens := newBackoffs(), now, now.Add(20*time.Minute)
		for now.Before(opens) {
			if wait := retry(b, &now, 1, webhook, same); wait > 30*time.Second {
				t.Fatalf("waits %s", wait)
			}
		}
		if wait := retry(b, &now, 1, budget, same); wait != time.Second {
			t.Errorf("waits %s for the budget", wait)
		}
	})
	t.Run("E14: refusals of a budget back off to 15 minutes whatever admission refuses in between", func(t *testing.T) {
		b, now := newBackoffs(), now
		for range 10 {
			retry(b, &now, 1, budget, same)
			retry(b, &now, 1, webhook, same)
		}
		if wait := retry(b, &now, 1, budget, same); wait != 15*time.Minute {
			t.Errorf("waits %s", wait)
		}
	})
	t.Run("E65: a change of the Pod ends the backoff after a second", func(t *testing.T) {
		b, now := newBackoffs(), now
		retry(b, &now, 10, webhook, same)
		b.refuse(podNamed("a", "1"), webhook, 0, now)
		if changed, effective := b.afterChange(podNamed("a", "2")); !effective || !changed.Equal(now.Add(time.Second)) {
			t.Errorf("deferred until %s, %t", changed, effective)
		}
		if _, effective := b.afterChange(podNamed("a", "1")); effective {
			t.Error("the Pod has not changed")
		}
	})
	t.Run("E65: a webhook that changes the Pod at each request is called every 30 s in the end", func(t *testing.T) {
		b, now := newBackoffs(), now
		if wait := retry(b, &now, 3, webhook, other); wait != 4*time.Second {
			t.Errorf("waits %s", wait)
		}
		if wait := retry(b, &now, 40, webhook, func(i int) *corev1.Pod { return other(i + 3) }); wait != 30*time.Second {
			t.Errorf("waits %s", wait)
		}
	})
	t.Run("E65: a Pod counts as refused until another response, or until it is gone", func(t *testing.T) {
		b := newBackoffs()
		for _, name := range []string{"accepted", "gone", "failed", "budget", "twice"} {
			b.refuse(podNamed(name, "1"), webhook, 0, now)
		}
		b.backOff("accepted", now)
		b.fail("failed", now, now)
		b.refuse(podNamed("budget", "1"), budget, 0, now)
		b.refuse(podNamed("twice", "1"), webhook, 0, now)
		if b.refusedIn["default"] != 2 {
			t.Errorf("%v are refused", b.refusedIn)
		}
		b.prune(nil, now.Add(time.Hour))
		if len(b.refusedIn) != 0 || len(b.refusedOnNode) != 0 {
			t.Errorf("%v are refused, %v", b.refusedIn, b.refusedOnNode)
		}
	})
	t.Run("E70: thousands of refused Pods of one Namespace defer those of another one no longer than a second", func(t *testing.T) {
		b := newBackoffs()
		for i := range 5000 {
			b.refuse(podNamed(strconv.Itoa(i), "1"), webhook, 0, now)
		}
		other := podNamed("other", "1")
		other.Namespace = "other"
		b.refuse(other, webhook, 0, now)
		if wait := b.of(other.UID).Sub(now); wait != time.Second {
			t.Errorf("waits %s", wait)
		}
		b.refuse(podNamed("0", "1"), webhook, 0, now)
		if wait := b.of("0").Sub(now); wait != 500*time.Second {
			t.Errorf("the others share what is left: waits %s", wait)
		}
	})
	t.Run("E65: a change of the Pod does not end the backoff of a budget", func(t *testing.T) {
		b, now := newBackoffs(), now
		if wait := retry(b, &now, 5, budget, other); wait != 16*time.Second {
			t.Errorf("waits %s", wait)
		}
	})
}

// simulation simulates the evictions of Pods without budgets in a workload cluster, the oldest drain first, as the evictor limits and
// defers them.
type simulation struct {
	*inFlightEvictions
	*backoffs
	now       time.Time
	perSecond int             // the limit of requests
	takes     time.Duration   // each response
	changes   bool            // each request changes the Pod
	pods      []*simulatedPod // the oldest drain first
	requests  []*simulatedPod // in the order in which the evictions began; those that are not sent yet wait for the limit of requests
	sent      int
}

type simulatedPod struct {
	pod             *corev1.Pod
	refused         bool
	next            time.Time // when it may be attempted
	begun, answered time.Time
	attempts        int
}

func (e *simulation) add(name, node string, refused bool) *simulatedPod {
	pod := podNamed(name, "1")
	pod.Spec.NodeName = node
	e.pods = append(e.pods, &simulatedPod{pod: pod, refused: refused})
	return e.pods[len(e.pods)-1]
}

// step simulates a tenth of a second: responses, a pass, and requests.
func (e *simulation) step() {
	e.now = e.now.Add(100 * time.Millisecond)
	waiting := e.requests[:0]
	for _, r := range e.requests {
		if r.answered.IsZero() || e.now.Before(r.answered) {
			waiting = append(waiting, r)
			continue
		}
		if r.refused {
			e.refuse(r.pod, evacuation.Refusal{Reason: v1alpha1.ReasonAdmissionPolicyRefused, Took: e.now.Sub(r.begun)}, 0.5, e.now)
		} else {
			e.backOff(r.pod.UID, e.now.Add(time.Hour))
		}
		e.end(r.pod.UID)
		r.attempts++
		r.next = e.of(r.pod.UID)
		if e.changes {
			r.pod.ResourceVersion += "0"
		}
		if changed, effective := e.afterChange(r.pod); effective && changed.Before(r.next) {
			r.next = changed
		}
	}
	e.requests = waiting
	for _, r := range e.pods {
		if !e.isFull() && !e.now.Before(r.next) && e.begin(budgets.Pod{UID: r.pod.UID, Node: r.pod.Spec.NodeName}, e.now) {
			r.begun, r.answered = e.now, time.Time{}
			e.requests = append(e.requests, r)
		}
	}
	e.sent += e.perSecond
	for _, r := range e.requests {
		if r.answered.IsZero() && e.sent >= 10 {
			r.answered = e.now.Add(e.takes)
			e.sent -= 10
		}
	}
	e.sent = min(e.sent, 10*e.perSecond)
}

func TestRefusedPodsDelayNoOthers(t *testing.T) {
	for _, tc := range []struct {
		name            string
		nodes, onEach   int
		takes           time.Duration
		changes         bool
		perSecond       int
		young           string // the Node of the younger drain
		atLeast, atMost int    // how often a refused Pod is attempted in 10 minutes
	}{
		{"a policy refuses 2,750 Pods", 25, 110, 0, false, 100, "young", 4, 8},
		{"a webhook that takes 5 s refuses 700 Pods", 7, 100, 5 * time.Second, false, 100, "young", 4, 8},
		{"a webhook that takes 5 s refuses 110 Pods of the same Node", 1, 110, 5 * time.Second, false, 100, "old-0", 4, 8},
		{"a policy refuses 400 Pods, and 10 evictions a second are allowed", 4, 100, 0, false, 10, "young", 5, 25},
		{"a webhook that changes the Pods refuses 2,750 of them", 25, 110, 0, true, 100, "young", 4, 12},
		{"a policy refuses 20 Pods", 1, 20, 0, false, 100, "young", 20, 30},
	} {
		t.Run("E65: a younger drain is served within a minute while "+tc.name, func(t *testing.T) {
			e := &simulation{
				inFlightEvictions: newInFlightEvictions(), backoffs: newBackoffs(),
				now: now, perSecond: tc.perSecond, takes: tc.takes, changes: tc.changes,
			}
			for i := range tc.nodes * tc.onEach {
				e.add(fmt.Sprintf("old-%d", i), fmt.Sprintf("old-%d", i%tc.nodes), true)
			}
			for minute := range 10 {
				for range 600 {
					e.step()
				}
				if last := e.pods[len(e.pods)-1]; !last.refused && last.attempts == 0 {
					t.Errorf("Pod %s is not evicted", last.pod.Name)
				}
				e.add(fmt.Sprintf("young-%d", minute), tc.young, false)
			}
			for _, each := range e.pods {
				if each.refused && (each.attempts < tc.atLeast || each.attempts > tc.atMost) {
					t.Fatalf("Pod %s was attempted %d times", each.pod.Name, each.attempts)
				}
			}
		})
	}
}
