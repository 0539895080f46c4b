package budgets_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestPauses(t *testing.T) {
	type call struct{ loss, final, now, want float64 } // seconds; final 0: no timeout; want 0: may be evicted
	for _, test := range []struct {
		name  string
		calls []call
	}{
		{"E55: three seconds after the loss", []call{{10, 0, 10.1, 13}, {10, 0, 12.9, 13}, {10, 0, 13, 0}}},
		{"E55: a Pod whose eviction is due later waits for the rest", []call{{10, 0, 12, 13}, {10, 0, 14, 0}}},
		{"E55: another loss prolongs the pause", []call{{10, 0, 10, 13}, {12, 0, 12, 15}, {12, 0, 14, 15}, {12, 0, 15, 0}}},
		{
			"E55: ten seconds at most while losses go on",
			[]call{{10, 0, 10, 13}, {13, 0, 13, 16}, {16, 0, 16, 19}, {19, 0, 19, 20}, {20, 0, 20, 0}, {22, 0, 22, 0}, {60, 0, 60, 0}},
		},
		{
			"E55: ten seconds in a minute",
			[]call{{10, 0, 10, 13}, {20, 0, 20, 23}, {30, 0, 30, 33}, {40, 0, 40, 41}, {50, 0, 50, 0}, {69, 0, 69, 0}, {71, 0, 71, 72}, {80, 0, 80, 82}},
		},
		{"E55: a minute later as before", []call{{10, 0, 10, 13}, {13, 0, 13, 16}, {16, 0, 16, 19}, {19, 0, 19, 20}, {20, 0, 20, 0}, {80, 0, 80, 83}}},
		{"E55: not at the final eviction attempt", []call{{10, 12, 10, 12}, {10, 12, 12, 0}, {30, 12, 30, 0}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var pauses budgets.Pauses
			for _, c := range test.calls {
				var final, until, want time.Time
				if c.final > 0 {
					final = at(c.final)
				}
				if c.want > 0 {
					want = at(c.want)
				}
				if pauses, until = pauses.After(budgets.Loss{At: at(c.loss)}, final, at(c.now)); !until.Equal(want) {
					t.Errorf("at %v: got %v, want %v", c.now, until.Sub(began), c.want)
				}
			}
			if !pauses.IsPast(at(1000)) {
				t.Error("the pauses are kept for ever")
			}
		})
	}
}

// TestPausesAreLimited loses budgets at any times, and adds up the pauses.
func TestPausesAreLimited(t *testing.T) {
	const step = 100 * time.Millisecond
	rapid.Check(t, func(t *rapid.T) {
		var pauses budgets.Pauses
		var paused []bool // by step
		loss := budgets.Loss{At: at(-100)}
		lossesPerMinute := rapid.SampledFrom([]int{1, 3, 20, 600}).Draw(t, "losses per minute")
		for i := range 1800 {
			now := began.Add(time.Duration(i) * step)
			if rapid.IntRange(1, 600).Draw(t, "dice") <= lossesPerMinute {
				loss.At = now
			}
			var until time.Time
			if now.Before(loss.At.Add(budgets.LossCounts)) {
				pauses, until = pauses.After(loss, time.Time{}, now)
			}
			paused = append(paused, now.Before(until))
			if len(pauses) > 60 {
				t.Fatalf("%d pauses are kept", len(pauses))
			}
		}
		sum := 0
		for i, is := range paused {
			if is {
				sum++
			}
			if i >= 600 && paused[i-600] {
				sum--
			}
			if time.Duration(sum)*step > 10*time.Second {
				t.Fatalf("E55: %s in a minute", time.Duration(sum)*step)
			}
		}
	})
}
