package evictor

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestInFlightEvictions(t *testing.T) {
	uid := func(node string, i int) types.UID { return types.UID(fmt.Sprintf("%s-%d", node, i)) }
	pod := func(node string, i int) budgets.Pod { return budgets.Pod{UID: uid(node, i), Node: node} }
	t.Run("E23: limits the evictions on one Node", func(t *testing.T) {
		f := newInFlightEvictions()
		for i := range budgets.EvictionsOnNode + 1 {
			if got, want := f.begin(pod("one", i), now), i < budgets.EvictionsOnNode; got != want {
				t.Errorf("eviction %d: begins %v", i+1, got)
			}
		}
		if !f.begin(pod("two", 0), now) {
			t.Error("another Node has to wait")
		}
		f.end(uid("one", 3))
		if !f.begin(pod("one", budgets.EvictionsOnNode), now) {
			t.Error("the limit still counts an eviction that has ended")
		}
	})
	t.Run("E23: limits the evictions in a workload cluster", func(t *testing.T) {
		f, begun := newInFlightEvictions(), 0
		for i := range 2 * budgets.EvictionsInCluster {
			if f.begin(pod(fmt.Sprintf("node-%d", i), 0), now) {
				begun++
			}
		}
		if begun != budgets.EvictionsInCluster {
			t.Errorf("%d are in flight", begun)
		}
	})
	t.Run("E23: after the limit was reached, the next pass starts when several evictions have ended", func(t *testing.T) {
		f := newInFlightEvictions()
		for i := range budgets.EvictionsInCluster {
			f.begin(pod(fmt.Sprintf("node-%d", i), 0), now)
		}
		if f.allows(pod("another", 0)) {
			t.Error("the limit allows one more eviction")
		}
		for i := range evictionsAfterFull {
			if !f.isFull() {
				t.Errorf("not full after %d evictions have ended", i)
			}
			f.end(uid(fmt.Sprintf("node-%d", i), 0))
		}
		if f.isFull() || !f.allows(pod("another", 0)) {
			t.Error("full, although the limit allows evictions")
		}
	})
	t.Run("a Pod has one in-flight eviction, and a budget one reservation", func(t *testing.T) {
		f, budget := newInFlightEvictions(), types.NamespacedName{Namespace: "default", Name: "web"}
		pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		a := budgets.Pod{UID: "a", Node: "one"}
		if !f.begin(a, now) || f.begin(a, now.Add(time.Second)) {
			t.Error("the Pod has no in-flight eviction, or two")
		}
		if all := f.all(); !f.has("a") || len(all) != 1 || all[0].Pod.UID != "a" || !all[0].Begun.Equal(now) {
			t.Errorf("in flight: %v", all)
		}
		if !f.reserveBudget(budget) || f.reserveBudget(budget) || !f.isStale(pdb) {
			t.Error("the budget is not reserved, or twice")
		}
		f.end("a")
		f.end("a")
		f.releaseBudget(budget)
		if f.has("a") || f.isStale(pdb) {
			t.Errorf("not all evictions have ended: %+v", f)
		}
	})
	t.Run("a budget is stale until the watch has reached the awaited version", func(t *testing.T) {
		f := newInFlightEvictions()
		at := func(version string) *policyv1.PodDisruptionBudget {
			return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "b", ResourceVersion: version}}
		}
		observes := func(version string) bool {
			f.observeBudgets([]*budgets.Budget{budgets.New(at(version))}, now)
			return !f.isStale(at(version))
		}
		if !observes("10") {
			t.Error("stale without an awaited version")
		}
		f.awaitBudget("b", "100", now)
		f.awaitBudget("b", "98", now) // requested before, and answered after
		if observes("99") {
			t.Error("99 is before 100")
		}
		if !observes("100") || !observes("99") {
			t.Error("100 was reached, and a watch does not go back")
		}
		f.awaitBudget("b", "200", now)
		if next := f.observeBudgets([]*budgets.Budget{budgets.New(at("5"))}, now.Add(awaitedTimeout-1)); !next.Equal(now.Add(awaitedTimeout)) || !f.isStale(at("5")) {
			t.Errorf("the version is awaited until %s", next)
		}
		if next := f.observeBudgets([]*budgets.Budget{budgets.New(at("5"))}, now.Add(awaitedTimeout)); !next.IsZero() || f.isStale(at("5")) {
			t.Error("R73: a budget stays stale after the API server was restored from a backup")
		}
		f.awaitBudget("b", "7", now)
		f.observeBudgets(nil, now)
		if len(f.awaited) > 0 {
			t.Error("the version of a deleted budget is still awaited")
		}
	})
}

func TestHangingEvictions(t *testing.T) {
	pod := func(namespace, node string, i int) budgets.Pod {
		return budgets.Pod{UID: types.UID(fmt.Sprintf("%s-%s-%d", namespace, node, i)), Namespace: namespace, Node: node}
	}
	// begin begins as many evictions of a Namespace as possible on eight Nodes.
	begin := func(f *inFlightEvictions, namespace string) (begun int) {
		for i := range 8 * budgets.EvictionsOnNode {
			if f.begin(pod(namespace, fmt.Sprintf("node-%d", i%8), i), now) {
				begun++
			}
		}
		return begun
	}
	hang := func(f *inFlightEvictions) {
		for _, e := range f.all() {
			f.hang(e.Pod.UID, now)
		}
	}
	t.Run("E82: evictions of one Namespace that hang do not stop those of others", func(t *testing.T) {
		g, f := NewWithT(t), newInFlightEvictions()
		g.Expect(begin(f, "hangs")).To(Equal(budgets.EvictionsInCluster))
		g.Expect(f.isFull()).To(BeTrue())
		g.Expect(f.allows(pod("web", "node-9", 0))).To(BeFalse())
		hang(f)
		g.Expect(f.isFull()).To(BeFalse())
		g.Expect(f.free(pod("hangs", "node-9", 0))).To(BeZero(), "the Namespace uses its share on all Nodes")
		g.Expect(f.free(pod("web", "node-0", 0))).To(Equal(budgets.EvictionsOnNode), "the limit of a Node counts those that hang only for their Namespace")
		g.Expect(f.begin(pod("web", "node-0", 0), now)).To(BeTrue())
		f.end("hangs-node-0-0")
		f.end("hangs-node-1-1")
		g.Expect(f.free(pod("hangs", "node-0", 0))).To(BeZero(), "the Node still has one that does not hang")
		g.Expect(f.free(pod("hangs", "node-1", 1))).To(Equal(1))
	})
	t.Run("E82: evictions that hang in several Namespaces do not stop those in another one", func(t *testing.T) {
		g, f := NewWithT(t), newInFlightEvictions()
		for i := range 4 {
			g.Expect(begin(f, fmt.Sprintf("hangs-%d", i))).To(BeNumerically(">", 0), "Namespace %d", i)
			hang(f)
		}
	})
	t.Run("E82: whether a second eviction of a Pod hangs depends on its own age, not on that of the first", func(t *testing.T) {
		g, f := NewWithT(t), newInFlightEvictions()
		g.Expect(f.begin(pod("web", "one", 0), now.Add(time.Second))).To(BeTrue())
		g.Expect(f.hang("web-one-0", now)).To(BeFalse())
	})
}

func TestInFlight(t *testing.T) {
	admitted := budgets.PodOf(podNamed("web", ""))
	seen := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := podNamed("web", "")
		change(pod)
		return pod
	}
	for _, tc := range []struct {
		name   string
		pod    *corev1.Pod
		after  time.Duration
		counts bool
	}{
		{name: "an in-flight eviction counts against its budget", pod: seen(func(*corev1.Pod) {}), after: time.Second, counts: true},
		{
			name: "an in-flight eviction of a Pod that terminates counts", pod: seen(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
			after: time.Second, counts: true,
		},
		{
			name: "an in-flight eviction of a failed Pod counts", pod: seen(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), after: time.Second, counts: true,
		},
		{name: "an in-flight eviction of a deleted Pod counts", pod: &corev1.Pod{}, after: time.Second, counts: true},
		{name: "an eviction that hangs does not count", pod: seen(func(*corev1.Pod) {}), after: unansweredTimeout},
	} {
		t.Run("E18: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			p := passOver(t, now.Add(tc.after), onePod{pod: tc.pod})
			g.Expect(p.state.inFlight.begin(admitted, now)).To(BeTrue())
			candidates, err := p.collect(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			if !tc.counts {
				g.Expect(candidates).To(BeEmpty())
				return
			}
			g.Expect(candidates).To(HaveLen(1))
			g.Expect(candidates[0].InFlight).To(BeTrue())
			g.Expect(candidates[0].Pod).To(Equal(admitted))
			g.Expect(p.nextTry).To(BeTemporally("==", now.Add(unansweredTimeout)), "if it hangs, no event follows")
		})
	}
}
