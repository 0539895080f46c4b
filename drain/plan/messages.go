package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Limits of the fields that contain the messages.
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

// message returns the message about the drain of a Node by a maintenance. Its texts are those of KEP-4212.
func (t *tally) message(m *maintenance) string {
	switch {
	case !t.live:
		return messageDrained
	case len(t.overtakenBy) > 0:
		return messageEvacuating + " (fast-forwarded by older " + text.List(t.fastForwardedBy(), maxNames) + ")"
	case t.targeted && len(t.limitedBy)+len(t.forbiddenBy) > 0:
		return messageEvacuating + " (limited by " + text.List(t.limiters(), maxNames) + ")"
	case t.targeted:
		return messageEvacuating
	case t.forbidden != nil:
		return t.forbidden.waitingFor(m)
	case len(t.limitedBy) > 0:
		return t.limitedBy.root().waitingFor(m)
	case t.later:
		return m.trail.root.waitingFor(m)
	default:
		return t.forbiddenLater.waitingFor(m)
	}
}

// limiters names the maintenances without which more Pods would be targets.
func (t *tally) limiters() []string {
	all := maps.Clone(t.limitedBy)
	all = all.with(slices.Collect(maps.Keys(t.forbiddenBy))...)
	return all.names()
}

// fastForwardedBy names the least powerful of the older maintenances because of which Pods are evacuated that the maintenance does not
// allow yet.
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

// comparePower compares how many Pods the cursors of two maintenances allow.
func (m *maintenance) comparePower(other *maintenance) int {
	a, b := m.cursor, other.cursor
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.order, b.order),
		cmp.Compare(m.plan[a.rank][a.entry].priority, other.plan[b.rank][b.entry].priority))
}

// waitingFor returns the message that a Node of the maintenance waits for the root.
func (r root) waitingFor(m *maintenance) string {
	switch {
	case r.node == nil:
		return "Waiting for other NodeMaintenances that select the Node."
	case r.by == m:
		return "Waiting for node " + r.node.name + "."
	default:
		return "Waiting for node " + r.node.name + " (" + r.by.Name + ")."
	}
}

// waitingFor returns the message that the maintenance waits for a Pod that is vetoed.
func (p *pod) waitingFor(m *maintenance) string {
	return "Waiting for Pod " + p.Namespace + "/" + p.Name + p.awaited(m)
}

// awaited completes a message with what the maintenance waits for.
func (p *pod) awaited(m *maintenance) string {
	by, why := p.forbidder(m)
	message := " to complete"
	if why == undecided {
		message = ": the drain rules cannot be evaluated"
	}
	if by != m {
		message += " (" + by.Name + ")"
	}
	return message + "."
}

// blocking returns the message about what the maintenance waits for.
func (m *maintenance) blocking() string {
	t := m.trail
	var message string
	switch {
	case len(m.nodes) == 0:
		message = "No Node is selected."
	case !m.live:
		return ""
	case t.forbidden != nil && len(t.evacuating) == 0:
		message = "Waiting for Pod " + t.forbidden.Namespace + "/" + t.forbidden.Name + " on Node " + t.forbidden.node.name + t.forbidden.awaited(m)
	case len(t.evacuating) > 0:
		message = fmt.Sprintf("Waiting for %s with drain order %d on Node %s", podsOf[m.cursor.rank], m.cursor.order, t.evacuating[0].name)
		if more := len(t.evacuating) - 1; more > 0 {
			message += " and " + text.Count(more, "more Node")
		}
		message += " to terminate."
	default:
		message = t.root.waitingFor(m)
	}
	return text.Cut(message, maxBlocking)
}

// podsOf names the Pods of each rank.
var podsOf = [ranks]string{rankDefault: "Pods", rankDaemonSet: "Pods of DaemonSets", rankStatic: "static Pods"}

func (s members) names() []string {
	names := make([]string, 0, len(s))
	for m := range s {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}
