package budgets_test

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestUnserved(t *testing.T) {
	t.Run("E19: without policy/v1 each Pod waits with a reason", func(t *testing.T) {
		candidates := []budgets.Candidate{{Pod: budgets.Pod{UID: "a"}}, {Pod: budgets.Pod{UID: "b"}}}
		waiting := budgets.Unserved(append(candidates, budgets.Candidate{Pod: budgets.Pod{UID: "c"}, InFlight: true}))
		if len(waiting) != len(candidates) {
			t.Fatalf("got %+v", waiting)
		}
		for i, each := range waiting {
			if each.Pod.UID != candidates[i].Pod.UID || each.Reason != budgets.EvictionNotServed || each.Message == "" {
				t.Errorf("got %+v", each)
			}
		}
	})
}
