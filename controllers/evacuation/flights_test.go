package evacuation

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestFlights(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	uid := func(node string, i int) types.UID { return types.UID(fmt.Sprintf("%s-%d", node, i)) }
	t.Run("E23: one Node has its share of the places, and no more", func(t *testing.T) {
		f := newFlights()
		for i := range evictionsOnNode + 1 {
			if got, want := f.start(uid("one", i), "one", now), i < evictionsOnNode; got != want {
				t.Errorf("eviction %d: begun %v", i+1, got)
			}
		}
		if !f.start(uid("two", 0), "two", now) {
			t.Error("another Node has to wait for it")
		}
		f.end(uid("one", 3))
		if !f.start(uid("one", evictionsOnNode), "one", now) {
			t.Error("a place that was given back isn't there")
		}
	})
	t.Run("E23: all Nodes together are bounded, too", func(t *testing.T) {
		f, begun := newFlights(), 0
		for i := range 2 * evictionsInCluster {
			if f.start(uid("p", i), fmt.Sprintf("node-%d", i), now) {
				begun++
			}
		}
		if begun != evictionsInCluster {
			t.Errorf("%d are under way", begun)
		}
	})
	t.Run("E23: who has found no place looks again when there are some", func(t *testing.T) {
		f := newFlights()
		for i := range evictionsInCluster {
			f.start(uid("p", i), fmt.Sprintf("node-%d", i), now)
		}
		if f.isFull() {
			t.Error("full, though nobody was turned away")
		}
		if f.hasPlace("another") || !f.isFull() {
			t.Error("there is a place, or it isn't known that there is none")
		}
		for i := range placesTogether {
			if !f.isFull() {
				t.Errorf("not full with %d places", i)
			}
			f.end(uid("p", i))
		}
		if f.isFull() || !f.hasPlace("another") {
			t.Error("full, though there are places")
		}
	})
	t.Run("a Pod is evicted once at a time, and a budget has one who evicts", func(t *testing.T) {
		f, budget := newFlights(), types.NamespacedName{Namespace: "default", Name: "web"}
		if !f.start("a", "one", now) || f.start("a", "one", now.Add(time.Second)) {
			t.Error("twice")
		}
		if all := f.all(); !f.has("a") || len(all) != 1 || !all["a"].Equal(now) {
			t.Errorf("under way: %v", all)
		}
		if !f.take(budget) || f.take(budget) || !f.taken(budget) {
			t.Error("two at a budget")
		}
		f.end("a")
		f.end("a")
		f.giveBack(budget)
		if f.has("a") || f.taken(budget) || len(f.onNode) > 0 {
			t.Errorf("something is left: %+v", f)
		}
	})
}
