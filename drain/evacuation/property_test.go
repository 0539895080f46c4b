package evacuation_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"
)

func init() {
	// More runs than rapid's default of 100, and shorter ones than its 30 steps. Flags of the command line still override them.
	for name, value := range map[string]string{"rapid.checks": "400", "rapid.steps": "16"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// TestLifeOfAnEvacuation applies events of evacuators, instigators, users, Pods, budgets and clocks to Evacuations in random order.
// Writes get lost, and the manager restarts between two writes. The test verifies the guarantees of Next and Apply: each evacuator is
// activated once, one is active at a time, no Pod is evicted while its evacuator makes progress, and each Evacuation ends and is
// cleaned up.
func TestLifeOfAnEvacuation(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t, r)
		r.Repeat(map[string]func(*rapid.T){"": f.check, "event": f.happen})
		f.mustEnd(r)
	})
}
