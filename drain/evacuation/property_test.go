package evacuation_test

import (
	"flag"
	"testing"

	"pgregory.net/rapid"
)

func init() {
	// More lives than rapid's 100, and shorter ones than its 30 steps. The flags still count.
	for name, value := range map[string]string{"rapid.checks": "400", "rapid.steps": "16"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// TestLifeOfAnEvacuation drives Evacuations through whatever evacuators, instigators, users, Pods, budgets and clocks may do, in
// any order, with writes that get lost and managers that are killed between two of them, and holds Next and Apply to what they
// promise: one evacuator is active at a time and each once, nobody is evicted while one makes progress, there is always somebody
// who can go on, and a clean end.
func TestLifeOfAnEvacuation(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t, r)
		r.Repeat(map[string]func(*rapid.T){"": w.check, "event": w.happen})
		w.mustEnd(r)
	})
}
