package machinedrain_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func contender(name string, second int) machinedrain.Contender {
	return machinedrain.Contender{Name: name, Deleted: time.Unix(int64(second), 0)}
}

func inDrain(c machinedrain.Contender) machinedrain.Contender {
	c.Draining = true
	return c
}

func began(c machinedrain.Contender, second int) machinedrain.Contender {
	c.Draining, c.Began = true, time.Unix(int64(second), 0)
	return c
}

// within gives a Machine a drain timeout.
func within(seconds int, c machinedrain.Contender) machinedrain.Contender {
	c.Timeout = time.Duration(seconds) * time.Second
	return c
}

func TestTurnOf(t *testing.T) {
	for _, test := range []struct {
		name  string
		self  machinedrain.Contender
		all   []machinedrain.Contender
		limit int
		at    int
		now   bool
	}{
		{"M26: without a limit it is everybody's turn, at once", contender("c", 3), []machinedrain.Contender{inDrain(contender("a", 1)), inDrain(contender("b", 2))}, 0, 3, true},
		{"M26: the oldest deletion goes first", contender("b", 2), []machinedrain.Contender{contender("a", 1), contender("b", 2)}, 1, 9, false},
		{"M26: and doesn't wait for later ones", contender("a", 1), []machinedrain.Contender{contender("a", 1), contender("b", 2)}, 1, 9, true},
		{"M26: of two at the same time the first by name", contender("b", 1), []machinedrain.Contender{contender("a", 1), contender("b", 1)}, 1, 9, false},
		{"M26: nobody begins while such a one may not have been seen", contender("b", 1), []machinedrain.Contender{contender("b", 1)}, 1, 2, false},
		{"M26: and then it does", contender("b", 1), []machinedrain.Contender{contender("b", 1)}, 1, 3, true},
		{"M26: one that drains keeps its turn", inDrain(contender("b", 2)), []machinedrain.Contender{contender("a", 1), inDrain(contender("b", 2))}, 1, 2, true},
		{"M26: and an older one waits for it", contender("a", 1), []machinedrain.Contender{contender("a", 1), inDrain(contender("b", 2))}, 1, 9, false},
		{"M37: without a drain timeout a Machine waits as long as others drain", contender("b", 2), []machinedrain.Contender{began(contender("a", 1), 1)}, 1, 1000, false},
		{"M37: with one it waits that long after its deletion", within(10, contender("b", 20)), []machinedrain.Contender{began(contender("a", 1), 1)}, 1, 29, false},
		{"M37: and no longer", within(10, contender("b", 20)), []machinedrain.Contender{began(contender("a", 1), 1)}, 1, 30, true},
		{"M37: the wait restarts when another drain begins", within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), began(contender("b", 2), 25)}, 2, 34, false},
		{"M37: until no drain has begun for so long", within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), began(contender("b", 2), 25)}, 2, 35, true},
		{"M37: of two that have waited so long the older begins", within(10, contender("b", 2)), []machinedrain.Contender{began(contender("a", 1), 1), within(10, contender("c", 3))}, 1, 50, true},
		{"M37: and the younger waits on", within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), within(10, contender("b", 2))}, 1, 50, false},
		{"M37: but not for one that has no drain timeout", within(10, contender("c", 3)), []machinedrain.Contender{began(contender("a", 1), 1), contender("b", 2)}, 1, 50, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := machinedrain.TurnOf(test.self, test.all, test.limit, time.Unix(int64(test.at), 0)); got.Now() != test.now {
				t.Errorf("got %+v", got)
			}
		})
	}
	t.Run("M26: who waits is told why, in words that last", func(t *testing.T) {
		all := []machinedrain.Contender{inDrain(contender("a", 1)), contender("b", 2), contender("c", 3)}
		for limit, want := range map[int]string{
			2: "Waiting for its turn: 2 Nodes of the Cluster are drained at once (maxParallelDrains), 1 are being drained now. The Node is cordoned meanwhile",
			3: "Waiting for its turn: Machines that were deleted in the same second may come before it (maxParallelDrains). The Node is cordoned meanwhile",
		} {
			if got := machinedrain.TurnOf(all[2], all, limit, time.Unix(3, 0)).String(); got != want {
				t.Errorf("got %q", got)
			}
		}
	})
}

// lagging is a Machine as the next property has it.
type lagging struct {
	machinedrain.Contender
	seen  time.Time // when the watch shows it
	begun time.Time // when its drain has begun
}

// TestTurnsKeepTheLimit has Machines come, begin in their turn, and go, in any order: never more drain than may, and while there is
// room it is somebody's turn. A Machine that asks sees the others as late as a second after it: that they are there, and that they
// have begun.
func TestTurnsKeepTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const lag = 1000 // ms
		limit := rapid.IntRange(1, 2).Draw(t, "limit")
		now := time.Unix(1000, 0)
		var all []*lagging
		contenders := func(at time.Time) (seen []machinedrain.Contender) {
			for _, m := range all {
				c := m.Contender
				c.Draining = !m.begun.IsZero() && !at.Before(m.begun)
				if !now.Before(m.seen) {
					seen = append(seen, c)
				}
			}
			return seen
		}
		for i := range rapid.IntRange(100, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				all = append(all, &lagging{
					Contender: machinedrain.Contender{Name: fmt.Sprintf("%c%02d", rapid.ByteRange('a', 'z').Draw(t, "name"), i), Deleted: now.Truncate(time.Second)},
					seen:      now.Add(time.Duration(rapid.SampledFrom([]int{0, lag}).Draw(t, "lag")) * time.Millisecond),
				})
			case 1: // all that are there look, and begin if it is their turn
				for _, m := range all {
					if m.begun.IsZero() && !now.Before(m.seen) {
						view := contenders(now.Add(-time.Duration(rapid.SampledFrom([]int{1, lag}).Draw(t, "lag")) * time.Millisecond))
						if machinedrain.TurnOf(m.Contender, view, limit, now).Now() {
							m.begun = now
						}
					}
				}
			case 2:
				if len(all) > 0 {
					gone := rapid.IntRange(0, len(all)-1).Draw(t, "goes")
					all = slices.Delete(all, gone, gone+1)
				}
			case 3:
				now = now.Add(time.Duration(rapid.SampledFrom([]int{1, 100, 900, 1000, 1100, 2000}).Draw(t, "passes")) * time.Millisecond)
			}
			count := 0
			for _, m := range all {
				if !m.begun.IsZero() {
					count++
				}
			}
			if count > limit {
				t.Fatalf("%d drain, %d may", count, limit)
			}
		}
		now = now.Add(time.Minute)
		settled := contenders(now)
		draining := len(slices.DeleteFunc(slices.Clone(settled), func(c machinedrain.Contender) bool { return !c.Draining }))
		itsTurn := func(c machinedrain.Contender) bool {
			return !c.Draining && machinedrain.TurnOf(c, settled, limit, now).Now()
		}
		if draining < min(limit, len(settled)) && !slices.ContainsFunc(settled, itsTurn) {
			t.Fatalf("%d drain, %d may, and it is nobody's turn", draining, limit)
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
		if got := machinedrain.ParallelDrains(test.value, test.workers); got != test.want {
			t.Errorf("%v of %d: %d, want %d", test.value, test.workers, got, test.want)
		}
	}
}
