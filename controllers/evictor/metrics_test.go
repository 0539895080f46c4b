package evictor

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
)

func TestObserveBlocked(t *testing.T) {
	t.Run("M29: counts blocked Pods by reason, and deletes the series of past reasons", func(t *testing.T) {
		podsBlocked.Reset() // of other tests
		one, two := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "two"}
		r, other := newState(), newState()
		r.observeBlocked(one, map[string]int{"BudgetExhausted": 3, "AdmissionRefused": 1})
		other.observeBlocked(two, map[string]int{"BudgetExhausted": 5})
		r.observeBlocked(one, map[string]int{"BudgetExhausted": 2})
		if got := testutil.ToFloat64(podsBlocked.WithLabelValues("ns", "one", "BudgetExhausted")); got != 2 {
			t.Errorf("got %v, want 2", got)
		}
		if got := testutil.CollectAndCount(podsBlocked); got != 2 {
			t.Errorf("%d series, want one of each Cluster", got)
		}
		r.observeBlocked(one, nil)
		other.observeBlocked(two, nil)
		if got := testutil.CollectAndCount(podsBlocked); got != 0 {
			t.Errorf("%d series, want none", got)
		}
	})
}
