package budgets

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Holders has, by PodDisruptionBudget, the drain that has used its disruptions last, the oldest one if several have. It forgets the drain
// when the budget allows a disruption that no Pod waits for, or is deleted.
type Holders map[string]holder

type holder struct {
	pod     Pod    // the one that was admitted, zero if no drain is known
	node    string // the Node whose drain messages name, empty if they name none, since when, and what they say
	since   time.Time
	message string
}

// namedFor is the minimum time between two changes of the Node that messages about a budget name. Each change is a write for each Pod that
// waits: if many wait, the time is so long that these are ten in a second.
const namedFor = time.Minute

// Next returns the holders after Admit has returned these Pods. machineOf returns the Machine of a Pod's Node, empty if it is not known;
// isDrained is false if the Node is not drained, or the last eviction of the Pod was refused. changes is when to call Next again, zero if
// no name is to change.
func (h Holders) Next(
	index *Index, admitted []Admitted, waiting []Waiting, machineOf func(Pod) (machine string, isDrained bool), now time.Time,
) (next Holders, changes time.Time) {
	next = Holders{}
	for _, w := range waiting {
		next[w.Budget] = h[w.Budget]
	}
	for name, held := range h {
		if !index.isFree(name) {
			next[name] = held
		}
	}
	for _, a := range slices.Backward(admitted) { // the oldest drain last
		if a.Budget == nil || !a.Pod.Ready { // it uses no disruption
			continue
		}
		held := h[a.Budget.String()]
		held.pod = a.Pod
		next[a.Budget.String()] = held
	}
	interval := max(namedFor, time.Duration(len(waiting))*time.Second/10)
	for name, held := range next {
		machine, isDrained := machineOf(held.pod)
		if !isDrained {
			held.pod = Pod{}
		}
		switch until := held.since.Add(interval); {
		case held.pod.Node == held.node:
		case !now.Before(until):
			held.node, held.message, held.since = held.pod.Node, heldBy(held.pod.Node, machine), now
		case changes.IsZero() || until.Before(changes):
			changes = until
		}
		if next[name] = held; held.pod.Node == "" && !now.Before(held.since.Add(interval)) {
			delete(next, name)
		}
	}
	return next, changes
}

// isFree reports whether a budget does not exist, or allows a disruption.
func (i *Index) isFree(name string) bool {
	namespace, budgetName, _ := strings.Cut(name, "/")
	found, exists := slices.BinarySearchFunc(i.byNamespace[namespace], budgetName, func(b *Budget, name string) int { return strings.Compare(b.Name(), name) })
	if !exists {
		return true
	}
	budget := i.byNamespace[namespace][found]
	return !i.stale[budget] && budget.allowed() > 0
}

// Explain adds to the message of a waiting Pod which drain of another Node has used the disruptions of its budget.
func (h Holders) Explain(w Waiting) string {
	held := h[w.Budget]
	if held.node == "" || held.node == w.Pod.Node || w.NeverAllowsDisruption || w.Reason != BudgetExhausted && w.Reason != BlockedByUnhealthyPods {
		return w.Message
	}
	return text.Cut(w.Message, text.MaxMessage-utf8.RuneCountInString(held.message)) + held.message
}

// heldBy returns the end of a message. The names come from the workload cluster.
func heldBy(node, machine string) string {
	const limit = 100
	if node = text.Line(node, limit); machine != "" {
		node += " (Machine " + text.Line(machine, limit) + ")"
	}
	return "; the drain of Node " + node + " has used its disruptions"
}
