package nodemaintenance

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

var maintenance = workload.Request{Object: types.NamespacedName{Name: "maintenance"}}

func TestConflicts(t *testing.T) {
	const s, m = time.Second, time.Minute
	for _, tc := range []struct {
		name      string
		uncordons []time.Duration // after the start
		warns     []time.Duration
	}{
		{name: "R14: does not warn of three uncordons", uncordons: []time.Duration{0, s, 2 * s}},
		{name: "R14: warns of the fourth uncordon", uncordons: []time.Duration{0, s, 2 * s, 3 * s}, warns: []time.Duration{3 * s}},
		{name: "R14: does not warn of four uncordons in more than ten minutes", uncordons: []time.Duration{0, 4 * m, 8 * m, 11 * m}},
		{name: "R14: warns of four uncordons in any ten minutes", uncordons: []time.Duration{0, 4 * m, 8 * m, 11 * m, 12 * m}, warns: []time.Duration{12 * m}},
		{
			name: "R14: warns once a minute", uncordons: []time.Duration{0, s, 2 * s, 3 * s, 4 * s, 30 * s, 62 * s, 63 * s, 64 * s},
			warns: []time.Duration{3 * s, 63 * s},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			c := &conflicts{}
			var warned []time.Duration
			for _, uncordon := range tc.uncordons {
				due := c.isDue("node", maintenance, begin.Add(uncordon))
				if warn := c.add("node", maintenance, begin.Add(uncordon)); warn != due {
					t.Errorf("isDue returns %t, add %t", due, warn)
				} else if warn {
					warned = append(warned, uncordon)
				}
			}
			if len(warned) != len(tc.warns) {
				t.Fatalf("warned at %v, want %v", warned, tc.warns)
			}
			for i := range warned {
				if warned[i] != tc.warns[i] {
					t.Errorf("warned at %v, want %v", warned, tc.warns)
				}
			}
		})
	}
	t.Run("R14: counts each Node separately", func(t *testing.T) {
		c := &conflicts{}
		for _, node := range []string{"a", "b", "c", "d", "e"} {
			if c.add(types.UID(node), maintenance, time.Unix(0, 0)) {
				t.Error("warned of Node " + node)
			}
		}
	})
}

// TestConflictWarningsArePaced checks that warnings of one NodeMaintenance are at least a minute apart.
func TestConflictWarningsArePaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, now, last := &conflicts{}, time.Unix(1000000, 0), time.Time{}
		for range rapid.IntRange(1, 100).Draw(t, "uncordons") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
			if c.add(rapid.SampledFrom([]types.UID{"a", "b"}).Draw(t, "node"), maintenance, now) {
				if now.Sub(last) < time.Minute {
					t.Fatalf("warned at %v and %v", last, now)
				}
				last = now
			}
		}
	})
}
