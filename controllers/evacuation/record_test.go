package evacuation

import (
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestRecord(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	t.Run("a Pod that was tried rests, and not for ever: a lost event must not strand it", func(t *testing.T) {
		r := newRecord()
		if _, rests := r.backingOff("a", now); rests {
			t.Error("it was never tried")
		}
		r.backOff("a", now.Add(watchLag))
		if until, rests := r.backingOff("a", now); !rests || !until.Equal(now.Add(watchLag)) {
			t.Error("it was tried just now")
		}
		if _, rests := r.backingOff("a", now.Add(watchLag)); rests {
			t.Error("it rests for ever")
		}
	})
	t.Run("E38: a Pod that is not live is dropped once it does not rest any more", func(t *testing.T) {
		r := newRecord()
		r.backOff("a", now.Add(time.Minute))
		r.backOff("b", now.Add(time.Minute))
		r.keep(map[types.UID]bool{"b": true}, now)
		if _, rests := r.backingOff("a", now); !rests {
			t.Error("its Machine may be paused, and its eviction not be observed yet")
		}
		r.keep(map[types.UID]bool{"b": true}, now.Add(time.Minute))
		if len(r.backoffUntil) != 1 {
			t.Errorf("%d are left", len(r.backoffUntil))
		}
	})
	t.Run("M29: a refusal is known until a later eviction is accepted, or the Pod is gone", func(t *testing.T) {
		r := newRecord()
		r.refuse("a", now, "AdmissionRefused")
		r.refuse("b", now, "AdmissionRefused")
		if got := r.refusal("a"); got != "AdmissionRefused" {
			t.Errorf("got %q", got)
		}
		r.backOff("a", now.Add(watchLag))
		r.keep(map[types.UID]bool{"a": true}, now)
		if r.refusal("a") != "" || r.refusal("b") != "" {
			t.Error("it is still known")
		}
	})
	t.Run("a budget is stale until the watch has reached what was seen", func(t *testing.T) {
		r := newRecord()
		at := func(version string) *policyv1.PodDisruptionBudget {
			return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{UID: "b", ResourceVersion: version}}
		}
		if r.isStale(at("10")) {
			t.Error("nothing was seen")
		}
		r.observedAtLeast("b", "100")
		r.observedAtLeast("b", "98") // asked for before, and answered after
		if !r.isStale(at("99")) {
			t.Error("99 is before 100")
		}
		if r.isStale(at("100")) || r.isStale(at("99")) {
			t.Error("100 has been reached, and a watch doesn't go back")
		}
	})
}
