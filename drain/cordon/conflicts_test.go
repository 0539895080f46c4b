package cordon_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
)

func TestConflicts(t *testing.T) {
	const s, m = time.Second, time.Minute
	for _, tc := range []struct {
		name  string
		flips []time.Duration // after the begin
		warns []time.Duration
	}{
		{name: "R14: three flips are none", flips: []time.Duration{0, s, 2 * s}},
		{name: "R14: the fourth is", flips: []time.Duration{0, s, 2 * s, 3 * s}, warns: []time.Duration{3 * s}},
		{name: "R14: four within more than ten minutes aren't", flips: []time.Duration{0, 4 * m, 8 * m, 11 * m}},
		{name: "R14: four in any ten minutes are", flips: []time.Duration{0, 4 * m, 8 * m, 11 * m, 12 * m}, warns: []time.Duration{12 * m}},
		{name: "R14: one warning a minute", flips: []time.Duration{0, s, 2 * s, 3 * s, 4 * s, 30 * s, 62 * s, 63 * s, 64 * s}, warns: []time.Duration{3 * s, 63 * s}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			c := cordon.Conflicts{}
			var warned []time.Duration
			for _, flip := range tc.flips {
				due := c.Due("node", "maintenance", begin.Add(flip))
				if warn := c.Add("node", "maintenance", begin.Add(flip)); warn != due {
					t.Errorf("Due says %t, Add %t", due, warn)
				} else if warn {
					warned = append(warned, flip)
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
	t.Run("R14: Nodes are counted one by one", func(t *testing.T) {
		c := cordon.Conflicts{}
		for _, node := range []string{"a", "b", "c", "d", "e"} {
			if c.Add(node, "maintenance", time.Unix(0, 0)) {
				t.Error("warned of Node " + node)
			}
		}
	})
}

// However Nodes are flipped: warnings of one maintenance are a minute apart.
func TestWarningsArePaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, now, last := cordon.Conflicts{}, time.Unix(1000000, 0), time.Time{}
		for range rapid.IntRange(1, 100).Draw(t, "flips") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
			if c.Add(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node"), "maintenance", now) {
				if now.Sub(last) < time.Minute {
					t.Fatalf("warned at %v and %v", last, now)
				}
				last = now
			}
		}
	})
}

func TestFighter(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const spec = `{"f:spec":{"f:unschedulable":{}}}`
	for _, tc := range []struct {
		name    string
		managed []metav1.ManagedFieldsEntry
		want    string
	}{
		{name: "R14: the field's owner", managed: []metav1.ManagedFieldsEntry{entry("kubelet", `{"f:status":{}}`), entry("us", spec), entry("autoscaler", spec)}, want: "autoscaler"},
		{name: "R14: nobody is recorded", managed: []metav1.ManagedFieldsEntry{entry("us", spec), {Manager: "old"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := cordon.UncordonedBy(tc.managed, "us"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("R14: the first cordon undoes nothing", func(t *testing.T) {
		n := node(false)
		if cordon.WasUncordoned(n) {
			t.Error("flipped before it was cordoned")
		}
		cordon.Apply(n)
		if cordon.WasUncordoned(n) {
			t.Error("flipped by ourselves")
		}
		if n.Spec.Unschedulable = false; !cordon.WasUncordoned(n) {
			t.Error("a flip isn't seen")
		}
	})
}
