package nodeselection_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

func TestTurnsOf(t *testing.T) {
	started, drained := nodeselection.Progress{Started: true}, nodeselection.Progress{Started: true, Drained: true}
	drain := func(name string, limit int, nodes ...string) nodeselection.Drain {
		return nodeselection.Drain{Name: name, Limit: limit, Nodes: nodes}
	}
	schedulable := func(d nodeselection.Drain) nodeselection.Drain {
		d.Schedulable = true
		return d
	}
	for _, tc := range []struct {
		name     string
		drains   []nodeselection.Drain
		progress map[string]nodeselection.Progress
		next     []string // of maintenance m
		message  string
	}{
		{name: "R55: all Nodes start without a limit", drains: []nodeselection.Drain{drain("m", 0, "a", "b")}},
		{
			name: "R55: as many Nodes start as the limit allows, in the order of their names", drains: []nodeselection.Drain{drain("m", 2, "d", "c", "b", "a")},
			next: []string{"c", "d"}, message: "Waiting for Nodes a, b to be drained (maxParallelNodes allows 2)",
		},
		{
			name: "R55: a Node that has started continues, also if one with an earlier name joins", drains: []nodeselection.Drain{drain("m", 1, "a", "b")},
			progress: map[string]nodeselection.Progress{"b": started}, next: []string{"a"},
		},
		{
			name: "R55: the next Node starts when one is drained", drains: []nodeselection.Drain{drain("m", 1, "a", "b", "c")},
			progress: map[string]nodeselection.Progress{"a": drained}, next: []string{"c"},
		},
		{
			name: "R55: a lower limit does not pause Nodes", drains: []nodeselection.Drain{drain("m", 1, "a", "b", "c")},
			progress: map[string]nodeselection.Progress{"a": started, "b": started}, next: []string{"c"},
		},
		{
			name: "R55: a Node without Pods to drain does not wait and does not count", drains: []nodeselection.Drain{drain("m", 1, "a", "b", "c")},
			progress: map[string]nodeselection.Progress{"b": {Drained: true}}, next: []string{"c"},
		},
		{
			name:     "R55: a Node without Pods to drain that stays schedulable waits in the order of the names",
			drains:   []nodeselection.Drain{schedulable(drain("m", 1, "a", "b", "c"))},
			progress: map[string]nodeselection.Progress{"b": {Drained: true}}, next: []string{"b", "c"},
		},
		{
			name: "R55: and does not count", drains: []nodeselection.Drain{schedulable(drain("m", 1, "a", "b", "c", "d"))},
			progress: map[string]nodeselection.Progress{"a": drained, "b": {Drained: true}}, next: []string{"d"},
		},
		{
			name:     "R55, R56: but not if another NodeMaintenance drains it without a limit",
			drains:   []nodeselection.Drain{schedulable(drain("m", 1, "a", "b")), drain("n", 0, "b")},
			progress: map[string]nodeselection.Progress{"b": {Drained: true}},
		},
		{
			name:   "R56: a Node that another NodeMaintenance drains without a limit does not wait, and counts",
			drains: []nodeselection.Drain{drain("m", 1, "a", "b"), drain("n", 0, "b")},
			next:   []string{"a"},
		},
		{
			name:   "R56: a Node starts when the limits of all its NodeMaintenances allow it",
			drains: []nodeselection.Drain{drain("m", 1, "b", "c"), drain("n", 1, "a", "b")},
			next:   []string{"b"}, message: "Waiting for Node c to be drained (maxParallelNodes allows 1)",
		},
		{
			name: "R56: says that another NodeMaintenance is the reason", drains: []nodeselection.Drain{drain("m", 1, "b"), drain("n", 1, "a", "b")},
			next: []string{"b"}, message: "Waiting for another NodeMaintenance that selects the Node and drains as many Nodes as its maxParallelNodes allows",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			turns := nodeselection.TurnsOf(tc.drains, tc.progress)
			g.Expect(turns.Next("m")).To(Equal(tc.next))
			if tc.message != "" {
				g.Expect(turns.Message("m")).To(Equal(tc.message))
			}
		})
	}
}

// TestTurnsKeepTheLimits drains Nodes of overlapping maintenances in any order. A start never exceeds a limit, a Node that has started
// never waits, while Nodes wait at least one other is active, and all Nodes are drained in the end.
func TestTurnsKeepTheLimits(t *testing.T) { // R55, R56
	rapid.Check(t, func(t *rapid.T) {
		var drains []nodeselection.Drain
		for i := range rapid.IntRange(1, 4).Draw(t, "maintenances") {
			nodes := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}), 1, 8, rapid.ID).Draw(t, "nodes")
			drains = append(drains, nodeselection.Drain{
				Name: fmt.Sprint(i), Limit: rapid.IntRange(1, 3).Draw(t, "limit"), Nodes: nodes, Schedulable: rapid.Bool().Draw(t, "schedulable"),
			})
		}
		progress, waited := map[string]nodeselection.Progress{}, sets.New[string]()
		for _, d := range drains {
			waited.Insert(d.Nodes...)
		}
		for node := range waited {
			progress[node] = nodeselection.Progress{Drained: rapid.IntRange(0, 4).Draw(t, "empty") == 0}
		}
		all := waited.Len()
		for range 2 * all {
			turns := nodeselection.TurnsOf(drains, progress)
			var active []string
			for _, d := range drains {
				count := 0
				for _, node := range d.Nodes {
					if p := progress[node]; !turns.Waiting.Has(node) && !p.Drained {
						count++
						active = append(active, node)
					} else if p.Started && turns.Waiting.Has(node) {
						t.Fatalf("Node %s has started and waits", node)
					}
				}
				if count > d.Limit {
					t.Fatalf("maintenance %s drains %d Nodes, the limit is %d", d.Name, count, d.Limit)
				}
			}
			if len(active) == 0 {
				break
			}
			for _, node := range active {
				progress[node] = nodeselection.Progress{Started: true}
			}
			progress[rapid.SampledFrom(active).Draw(t, "drained")] = nodeselection.Progress{Started: true, Drained: true}
		}
		drained := 0
		for _, p := range progress {
			if p.Drained {
				drained++
			}
		}
		if drained != all {
			t.Fatalf("%d of %d Nodes are drained", drained, all)
		}
	})
}
