package evictor

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

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
		b.refuse("a", now, "AdmissionRefused", now)
		b.refuse("b", now, "AdmissionRefused", now)
		if got := b.refusal("a"); got != "AdmissionRefused" {
			t.Errorf("got %q", got)
		}
		b.backOff("a", now.Add(watchLag))
		b.prune(map[types.UID]bool{"a": true}, now)
		if b.refusal("a") != "" || b.refusal("b") != "" {
			t.Error("the reason is kept")
		}
	})
}
