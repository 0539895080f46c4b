package evacuation

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestFlights(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	uid := func(node string, i int) types.UID { return types.UID(fmt.Sprintf("%s-%d", node, i)) }
	pod := func(node string, i int) budgets.Pod { return budgets.Pod{UID: uid(node, i), Node: node} }
	t.Run("E23: one Node has its share of the places, and no more", func(t *testing.T) {
		f := newInFlightEvictions()
		for i := range evictionsOnNode + 1 {
			if got, want := f.start(pod("one", i), now), i < evictionsOnNode; got != want {
				t.Errorf("eviction %d: begun %v", i+1, got)
			}
		}
		if !f.start(pod("two", 0), now) {
			t.Error("another Node has to wait for it")
		}
		f.end(uid("one", 3))
		if !f.start(pod("one", evictionsOnNode), now) {
			t.Error("a place that was given back isn't there")
		}
	})
	t.Run("E23: all Nodes together are bounded, too", func(t *testing.T) {
		f, begun := newInFlightEvictions(), 0
		for i := range 2 * evictionsInCluster {
			if f.start(pod(fmt.Sprintf("node-%d", i), 0), now) {
				begun++
			}
		}
		if begun != evictionsInCluster {
			t.Errorf("%d are under way", begun)
		}
	})
	t.Run("E23: who has found no place looks again when there are some", func(t *testing.T) {
		f := newInFlightEvictions()
		for i := range evictionsInCluster {
			f.start(pod(fmt.Sprintf("node-%d", i), 0), now)
		}
		if f.isFull() {
			t.Error("full, though nobody was turned away")
		}
		if f.canReserve("another") || !f.isFull() {
			t.Error("there is a place, or it isn't known that there is none")
		}
		for i := range placesTogether {
			if !f.isFull() {
				t.Errorf("not full with %d places", i)
			}
			f.end(uid(fmt.Sprintf("node-%d", i), 0))
		}
		if f.isFull() || !f.canReserve("another") {
			t.Error("full, though there are places")
		}
	})
	t.Run("a Pod is evicted once at a time, and a budget has one who evicts", func(t *testing.T) {
		f, budget := newInFlightEvictions(), types.NamespacedName{Namespace: "default", Name: "web"}
		a := budgets.Pod{UID: "a", Node: "one"}
		if !f.start(a, now) || f.start(a, now.Add(time.Second)) {
			t.Error("twice")
		}
		if all := f.all(); !f.has("a") || len(all) != 1 || all[0].pod.UID != "a" || !all[0].begun.Equal(now) {
			t.Errorf("under way: %v", all)
		}
		if !f.takeDisruption(budget) || f.takeDisruption(budget) || !f.takenDisruptions(budget) {
			t.Error("two at a budget")
		}
		f.end("a")
		f.end("a")
		f.returnDisruption(budget)
		if f.has("a") || f.takenDisruptions(budget) || len(f.onNode) > 0 {
			t.Errorf("something is left: %+v", f)
		}
	})
}
