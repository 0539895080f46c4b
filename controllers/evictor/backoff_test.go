package evictor

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func podNamed(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: version}}
}

func TestBackoffs(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
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
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	webhook, budget := evacuation.Refusal{Reason: v1alpha1.ReasonWebhookRefused}, evacuation.Refusal{Reason: v1alpha1.ReasonBudgetRefused}
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
	t.Run("E65: a change of the Pod does not end the backoff of a budget", func(t *testing.T) {
		b, now := newBackoffs(), now
		if wait := retry(b, &now, 5, budget, other); wait != 16*time.Second {
			t.Errorf("waits %s", wait)
		}
	})
}
