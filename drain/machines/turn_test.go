package machines_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/machines"
)

func contender(name string, second int) machines.Contender {
	return machines.Contender{Name: name, Deleted: time.Unix(int64(second), 0)}
}

func inDrain(c machines.Contender) machines.Contender {
	c.Draining = true
	return c
}

func TestTurnOf(t *testing.T) {
	for _, test := range []struct {
		name  string
		self  machines.Contender
		all   []machines.Contender
		limit int
		now   bool
	}{
		{"M26: without a limit it is everybody's turn", contender("c", 3), []machines.Contender{inDrain(contender("a", 1)), inDrain(contender("b", 2))}, 0, true},
		{"M26: the oldest deletion goes first", contender("b", 2), []machines.Contender{contender("a", 1), contender("b", 2)}, 1, false},
		{"M26: and doesn't wait for later ones", contender("a", 1), []machines.Contender{contender("a", 1), contender("b", 2)}, 1, true},
		{"M26: of two at the same time the first by name", contender("b", 1), []machines.Contender{contender("a", 1), contender("b", 1)}, 1, false},
		{"M26: one that drains keeps its turn", inDrain(contender("b", 2)), []machines.Contender{contender("a", 1), inDrain(contender("b", 2))}, 1, true},
		{"M26: and an older one waits for it", contender("a", 1), []machines.Contender{contender("a", 1), inDrain(contender("b", 2))}, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := machines.TurnOf(test.self, test.all, test.limit); got.Now() != test.now {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("M26: who waits is told why, in words that last", func(t *testing.T) {
		got := machines.TurnOf(contender("c", 3), []machines.Contender{inDrain(contender("a", 1)), contender("b", 2), contender("c", 3)}, 2).String()
		if want := "Waiting for its turn: 2 Nodes of the Cluster are drained at once (maxParallelDrains), 1 are being drained now. The Node is cordoned meanwhile"; got != want {
			t.Errorf("got %q", got)
		}
	})
}

// TestTurnsKeepTheLimit has Machines come, begin in their turn, and go, in any order: never more drain than may, and while
// there is room it is somebody's turn. A Machine that asks may not have seen yet that others have begun.
func TestTurnsKeepTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		var all []machines.Contender
		for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				all = append(all, contender(fmt.Sprintf("m%02d", i), i/3))
			case 1: // all whose turn it is begin, as seen before any of them does
				seen := slices.Clone(all)
				for j := range all {
					if !all[j].Draining && machines.TurnOf(all[j], seen, limit).Now() {
						all[j].Draining = true
					}
				}
			case 2:
				if len(all) > 0 {
					gone := rapid.IntRange(0, len(all)-1).Draw(t, "goes")
					all = slices.Delete(all, gone, gone+1)
				}
			}
			count := 0
			for _, c := range all {
				if c.Draining {
					count++
				}
			}
			if count > limit {
				t.Fatalf("%d drain, %d may", count, limit)
			}
			itsTurn := func(c machines.Contender) bool { return !c.Draining && machines.TurnOf(c, all, limit).Now() }
			if count < limit && count < len(all) && !slices.ContainsFunc(all, itsTurn) {
				t.Fatalf("%d drain, %d may, and it is nobody's turn", count, limit)
			}
		}
	})
}

func TestParallelDrains(t *testing.T) {
	for _, test := range []struct {
		value   *intstr.IntOrString
		workers int
		want    int
	}{
		{nil, 10, 0},
		{ptr.To(intstr.FromInt32(3)), 10, 3},
		{ptr.To(intstr.FromString("25%")), 10, 2},
		{ptr.To(intstr.FromString("1%")), 10, 1},
		{ptr.To(intstr.FromString("100%")), 10, 10},
		{ptr.To(intstr.FromString("odd")), 10, 0},
	} {
		if got := machines.ParallelDrains(test.value, test.workers); got != test.want {
			t.Errorf("%v of %d: %d, want %d", test.value, test.workers, got, test.want)
		}
	}
}
