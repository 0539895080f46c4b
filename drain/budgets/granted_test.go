package budgets_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestGranted(t *testing.T) {
	entered := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	entry := func(pod string) func(*pdb) {
		return func(b *pdb) {
			b.Status.DisruptionsAllowed, b.Status.DisruptedPods = 0, map[string]metav1.Time{pod: metav1.NewTime(entered)}
		}
	}
	const granted, waits, retries = "granted", "waits", "retries"
	for _, tc := range []struct {
		name    string
		budgets []*pdb
		created time.Duration // of the Pod, after the entry
		age     time.Duration // of the entry
		stale   bool
		want    string
	}{
		{name: "deletes a Pod that its budget lists", budgets: []*pdb{budget("web", entry("p"))}, created: -time.Hour, age: 10 * time.Second, want: granted},
		{
			name: "deletes it when the disruption controller counts it as disrupted", budgets: []*pdb{budget("web", entry("p"), healthy(2, 3, 2))}, created: -time.Hour,
			age: 10 * time.Second, want: granted,
		},
		{
			name: "waits while the eviction may still be in flight", budgets: []*pdb{budget("web", entry("p"))}, created: -time.Hour, age: 2 * time.Second,
			want: retries,
		},
		{name: "waits if its clock is behind", budgets: []*pdb{budget("web", entry("p"))}, created: -time.Hour, age: -time.Minute, want: retries},
		{name: "waits if the entry is about to expire", budgets: []*pdb{budget("web", entry("p"))}, created: -time.Hour, age: 90 * time.Second, want: waits},
		{name: "waits if the budget lists another Pod", budgets: []*pdb{budget("web", entry("q"))}, created: -time.Hour, age: 10 * time.Second, want: waits},
		{
			name: "waits if the entry belongs to an earlier Pod of that name", budgets: []*pdb{budget("web", entry("p"))}, created: 0, age: 10 * time.Second,
			want: waits,
		},
		{
			name: "waits if the other Pods are less healthy than required", budgets: []*pdb{budget("web", entry("p"), healthy(1, 3, 2))}, created: -time.Hour,
			age: 10 * time.Second, want: waits,
		},
		{
			name: "waits if the disruption controller has not observed the spec", budgets: []*pdb{budget("web", entry("p"), func(b *pdb) { b.Generation = 2 })},
			created: -time.Hour, age: 10 * time.Second, want: waits,
		},
		{
			name: "waits if the status may not include own evictions", budgets: []*pdb{budget("web", entry("p"))}, created: -time.Hour, age: 10 * time.Second,
			stale: true, want: waits,
		},
		{
			name: "waits if a second budget selects the Pod", budgets: []*pdb{budget("web", entry("p")), budget("all")}, created: -time.Hour, age: 10 * time.Second,
			want: waits,
		},
		{
			name: "waits if the selector of a budget is invalid", budgets: []*pdb{budget("web", entry("p"), invalid)}, created: -time.Hour, age: 10 * time.Second,
			want: waits,
		},
	} {
		t.Run("E40: "+tc.name, func(t *testing.T) {
			candidate := pod("p")
			candidate.Pod.Created = entered.Add(tc.created)
			index := budgets.NewIndex(tc.budgets, func(*pdb) bool { return tc.stale })
			_, waiting := index.Admit([]budgets.Candidate{candidate})
			if len(waiting) != 1 {
				t.Fatal("the Pod does not wait")
			}
			admitted, others, retryAt := index.Granted(waiting, entered.Add(tc.age))
			got := waits
			switch {
			case len(admitted) == 1 && len(others) == 0 && admitted[0].Granted && admitted[0].Budget.Name() == "web":
				got = granted
			case !retryAt.IsZero():
				got = retries
			}
			if got != tc.want || len(admitted)+len(others) != 1 {
				t.Errorf("got %s, %d admitted, %d others", got, len(admitted), len(others))
			}
		})
	}
}
