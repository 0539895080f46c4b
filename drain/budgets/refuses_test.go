package budgets_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestRefuses(t *testing.T) {
	others := covers(&metav1.LabelSelector{MatchLabels: labels{"app": "db"}})
	for _, test := range []struct {
		name  string
		pod   budgets.Candidate
		pdbs  []*pdb
		stale bool
		want  bool
	}{
		{"E74: a budget that allows no disruption refuses", pod("a"), []*pdb{budget("web", allows(0))}, false, true},
		{"E74: a budget that cannot be computed refuses", pod("a"), []*pdb{budget("web", allows(0), condition("SyncFailed", "no"))}, false, true},
		{"E74: a budget whose Pods are not ready refuses", pod("a"), []*pdb{budget("web", healthy(1, 3, 2))}, false, true},
		{"E74: two budgets refuse, whatever they allow", pod("a"), []*pdb{budget("web"), budget("web-2")}, false, true},
		{"E74: no budget refuses nothing", pod("a"), []*pdb{budget("web", allows(0), others)}, false, false},
		{"E74: a budget that allows a disruption may be used by an older drain", pod("a"), []*pdb{budget("web")}, false, false},
		{"E74: the status of a budget is out of date", pod("a"), []*pdb{budget("web", allows(0), behind)}, false, false},
		{"E74: the status of a budget may not include our evictions", pod("a"), []*pdb{budget("web", allows(0))}, true, false},
		{"E74: the API server ignores a budget whose selector is invalid", pod("a"), []*pdb{budget("web", allows(0), invalid)}, false, false},
		{"E74: one of two budgets is ignored", pod("a"), []*pdb{budget("web"), budget("web-2", invalid)}, false, false},
		{"E74: a Pod that terminates needs no budget", pod("a", terminating), []*pdb{budget("web", allows(0))}, false, false},
		{"E74: a Pod that is not ready needs no disruption", pod("a", notReady), []*pdb{budget("web", healthy(2, 3, 2))}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := budgets.NewIndex(test.pdbs, always(test.stale)).Refuses(test.pod.Pod); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestRefusesAsTheServer tests that the API server refuses the eviction, also of the last Pod that others leave a disruption to.
func TestRefusesAsTheServer(t *testing.T) { // E74
	rapid.Check(t, func(t *rapid.T) {
		pdbs := rapid.SliceOfN(drawBudget(), 0, 5).Draw(t, "budgets")
		for _, b := range pdbs {
			if rapid.IntRange(0, 3).Draw(t, "invalid") == 0 {
				invalid(b)
			}
		}
		candidate := drawCandidate().Draw(t, "candidate")
		if !budgets.NewIndex(pdbs, nil).Refuses(candidate.Pod) {
			return
		}
		if accepted, _ := server(pdbs).evict(candidate.Pod); accepted {
			t.Fatalf("%+v would be evicted", candidate)
		}
		if admitted, _ := budgets.NewIndex(pdbs, nil).Admit([]budgets.Candidate{candidate}); len(admitted) > 0 {
			t.Fatalf("%+v is admitted", candidate)
		}
	})
}
