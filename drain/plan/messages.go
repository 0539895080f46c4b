package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// The limits of the fields that messages are written to.
const (
	maxMessage  = 1024
	maxBlocking = text.MaxMessage
	// maxNames is how many NodeMaintenances a message names.
	maxNames = 3
)

const (
	messageDrained    = "Drained"
	messageEvacuating = "Evacuating"
)

// message says how the drain of a Node goes for a maintenance, from its tally there.
func (t *tally) message(m *maintenance) string {
	switch {
	case !t.left:
		return messageDrained
	case len(t.overtakenBy) > 0:
		return messageEvacuating + " (fast-forwarded by older " + text.List(t.fastForwardedBy(), maxNames) + ")"
	case t.going && len(t.limitedBy)+len(t.forbiddenBy) > 0:
		return messageEvacuating + " (limited by " + text.List(t.limiters(), maxNames) + ")"
	case t.going:
		return messageEvacuating
	case t.forbidden != nil:
		return t.forbidden.waitingFor(m, false)
	case len(t.limitedBy) > 0:
		return t.limitedBy.root().waitingFor(m)
	case t.later:
		return m.trail.root.waitingFor(m)
	default:
		return t.forbiddenLater.waitingFor(m, false)
	}
}

// limiters names the maintenances without which more Pods would go.
func (t *tally) limiters() []string {
	all := maps.Clone(t.limitedBy)
	all = all.with(slices.Collect(maps.Keys(t.forbiddenBy))...)
	return all.names()
}

// fastForwardedBy names the older maintenances that decide how far the Node has come: the least powerful of those that have
// Pods evacuated which the maintenance would still keep.
func (t *tally) fastForwardedBy() []string {
	least := members{}
	for m := range t.overtakenBy {
		weaker := false
		for other := range t.overtakenBy {
			weaker = weaker || other.comparePower(m) < 0
		}
		if !weaker {
			least = least.with(m)
		}
	}
	return least.names()
}

// comparePower compares how far the cursors of two maintenances let Pods go.
func (m *maintenance) comparePower(other *maintenance) int {
	a, b := m.cursor, other.cursor
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.order, b.order),
		cmp.Compare(m.plan[a.rank][a.entry].priority, other.plan[b.rank][b.entry].priority))
}

// waitingFor says that a Node of the maintenance waits for the root.
func (r root) waitingFor(m *maintenance) string {
	switch {
	case r.node == nil:
		return "Waiting."
	case r.by == m:
		return "Waiting for node " + r.node.name + "."
	default:
		return "Waiting for node " + r.node.name + " (" + r.by.Name + ")."
	}
}

// waitingFor says that the maintenance waits for a Pod that it must not touch.
func (p *pod) waitingFor(m *maintenance, withNode bool) string {
	message := "Waiting for pod " + p.Namespace + "/" + p.Name
	if withNode {
		message += " on node " + p.node.name
	}
	by, why := p.forbidder(m)
	if why == undecided {
		message += ": what to do with it is undecided"
	} else {
		message += " to complete"
	}
	if by != m {
		message += " (" + by.Name + ")"
	}
	return message + "."
}

// blocking says in one line what keeps the maintenance from going on.
func (m *maintenance) blocking() string {
	t := m.trail
	var message string
	switch {
	case len(m.nodes) == 0:
		message = "No Node is selected."
	case !m.live:
		return ""
	case t.forbidden != nil && len(t.evacuating) == 0:
		message = t.forbidden.waitingFor(m, true)
	case len(t.evacuating) == 1:
		message = "Evacuating node " + t.evacuating[0].name + "."
	case len(t.evacuating) > 1:
		message = fmt.Sprintf("Evacuating node %s and %d more.", t.evacuating[0].name, len(t.evacuating)-1)
	default:
		message = t.root.waitingFor(m)
	}
	return text.Cut(message, maxBlocking)
}

// names returns the names of the maintenances, sorted.
func (s members) names() []string {
	names := make([]string, 0, len(s))
	for m := range s {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}
