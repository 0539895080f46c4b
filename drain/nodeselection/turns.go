package nodeselection

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxNamedNodes is the maximum number of Nodes that a message names.
const maxNamedNodes = 3

// Limit returns how many of a number of things may be drained at the same time: a number, or a percentage, rounded down, but at least one.
// It returns 0, which means no limit, if the value is nil or invalid.
func Limit(value *intstr.IntOrString, of int) int {
	if value == nil {
		return 0
	}
	limit, err := intstr.GetScaledValueFromIntOrPercent(value, of, false)
	if err != nil {
		return 0
	}
	return max(limit, 1)
}

// Drain is a maintenance in stage Drain.
type Drain struct {
	Name string
	// Limit is how many of its Nodes are drained at the same time, 0 if all are.
	Limit int
	// Nodes are the names of the selected Nodes.
	Nodes []string
	// Schedulable means that its Nodes stay schedulable until they start.
	Schedulable bool
}

// Progress is how far the drain of a Node is, by all of its maintenances together.
type Progress struct {
	// Started means that Pods of the Node are, or were, drain targets. Such a Node continues: a drain never pauses.
	Started bool
	// Drained means that the Node has no live Pod that must be drained.
	Drained bool
}

// isActive reports whether Pods of the Node are being drained.
func (p Progress) isActive() bool { return p.Started && !p.Drained }

// waits reports whether a Node starts in the order of the Nodes.
func (p Progress) waits(isSchedulable bool) bool { return !p.Started && (!p.Drained || isSchedulable) }

// Turns says which Nodes of maintenances with a limit are drained now, and which wait.
type Turns struct {
	// Waiting are the names of the Nodes that wait.
	Waiting sets.Set[string]
	drains  map[string]turn
}

type turn struct {
	limit           int
	active, waiting []string
}

// TurnsOf decides which Nodes are drained now. drains are the maintenances that are connected by shared Nodes. The decision depends on
// nothing else, so all of them agree on it:
//
//   - A Node that a maintenance without a limit selects is drained at once.
//   - The other Nodes start in the order of their names, each when all of its maintenances have fewer active Nodes than their limit.
//   - A Node that has started continues, and counts until it is drained.
//   - A Node without Pods to drain does not count. It starts at once, because it is only cordoned, or in order if it stays schedulable
//     until then: the Pods of the other Nodes may need its capacity.
func TurnsOf(drains []Drain, progress map[string]Progress) Turns {
	limited := map[string][]string{} // maintenances by Node
	unlimited, schedulable := sets.New[string](), sets.New[string]()
	turns := Turns{Waiting: sets.New[string](), drains: map[string]turn{}}
	for _, d := range drains {
		if d.Limit == 0 {
			unlimited.Insert(d.Nodes...)
			continue
		}
		turns.drains[d.Name] = turn{limit: d.Limit}
		for _, node := range d.Nodes {
			limited[node] = append(limited[node], d.Name)
		}
		if d.Schedulable {
			schedulable.Insert(d.Nodes...)
		}
	}
	nodes := sets.List(sets.KeySet(limited))
	for _, node := range nodes {
		if p := progress[node]; p.isActive() || unlimited.Has(node) && !p.Drained {
			turns.activate(node, limited[node])
		}
	}
	for _, node := range nodes {
		p := progress[node]
		if unlimited.Has(node) || !p.waits(schedulable.Has(node)) {
			continue
		}
		switch {
		case !turns.mayStart(limited[node]):
			turns.await(node, limited[node])
		case !p.Drained:
			turns.activate(node, limited[node])
		}
	}
	return turns
}

func (t Turns) mayStart(maintenances []string) bool {
	return !slices.ContainsFunc(maintenances, func(name string) bool { return len(t.drains[name].active) >= t.drains[name].limit })
}

func (t Turns) await(node string, maintenances []string) {
	t.Waiting.Insert(node)
	for _, name := range maintenances {
		d := t.drains[name]
		d.waiting = append(d.waiting, node)
		t.drains[name] = d
	}
}

func (t Turns) activate(node string, maintenances []string) {
	for _, name := range maintenances {
		d := t.drains[name]
		d.active = append(d.active, node)
		t.drains[name] = d
	}
}

// Next returns the names of the Nodes of a maintenance that wait, in the order in which they start.
func (t Turns) Next(maintenance string) []string { return t.drains[maintenance].waiting }

// Message says what the waiting Nodes of a maintenance wait for.
func (t Turns) Message(maintenance string) string {
	d := t.drains[maintenance]
	if len(d.active) < d.limit {
		return "Waiting for another NodeMaintenance that selects the Node and drains as many Nodes as its maxParallelNodes allows"
	}
	return fmt.Sprintf("Waiting for %s to be drained (maxParallelNodes allows %d)", text.Named("Node", d.active, maxNamedNodes), d.limit)
}
