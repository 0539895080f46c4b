package plan

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Decide returns which Pods are targets now, and what the others wait for.
func Decide(o Observation) Decision {
	s := newScene(o)
	s.placeFloors()
	s.placeCursors()
	s.chooseTargets()
	s.followBlockers()
	return s.decision()
}

func (s *scene) decision() Decision {
	d := Decision{
		Targets:      sets.New[types.UID](),
		Kept:         sets.New[types.UID](),
		Maintenances: make(map[string]MaintenanceDecision, len(s.maintenances)),
	}
	for _, m := range s.maintenances {
		d.Maintenances[m.Name] = MaintenanceDecision{
			Nodes:    make(map[string]NodeDecision, len(m.nodes)),
			Drained:  len(m.nodes) > 0 && !m.live,
			Blocking: m.blocking(),
		}
	}
	for _, n := range s.nodes {
		for _, p := range n.pods {
			switch {
			case p.targeted:
				d.Targets.Insert(p.UID)
			case p.kept():
				d.Kept.Insert(p.UID)
			}
		}
		rows := n.rows()
		tallies := n.countPods()
		for i, m := range n.maintenances {
			d.Maintenances[m.Name].Nodes[n.name] = tallies[i].decision(m, m.publish(n, rows, s.selectors))
		}
	}
	return d
}

func (t *tally) decision(m *maintenance, targets []v1alpha1.DrainTarget) NodeDecision {
	d := NodeDecision{
		Targets:    targets,
		Message:    text.Cut(t.message(m), maxMessage),
		Pending:    t.pending,
		Evacuating: t.evacuating,
		Skipped:    t.skipped,
		Drained:    !t.live,
	}
	if len(t.overtakenBy) > 0 {
		d.FastForwardedBy = t.fastForwardedBy()
	}
	return d
}

// placeFloors collects, for each Node, what its maintenances have published for it.
func (s *scene) placeFloors() {
	for _, n := range s.nodes {
		n.floor = reaches{}
		for _, m := range n.maintenances {
			n.floor.raiseTo(m.Published[n.name], s.selectors)
		}
	}
}

// placeCursors sets the cursor of each maintenance to the lowest of its steps that has a live Pod on any of its Nodes: a Pod that drains,
// that must complete, or that is undecided.
//
// A Pod that appears at a lower step moves the cursor back to this step. The floor keeps the Pods that are targeted already, see
// underFloor.
func (s *scene) placeCursors() {
	for _, n := range s.nodes {
		for _, p := range n.pods {
			if p.Finished {
				continue
			}
			for i, m := range n.maintenances {
				m.lowerCursor(p.opinions[i])
			}
		}
	}
	for _, m := range s.maintenances {
		m.reached = m.reachedRows()
	}
}

// lowerCursor moves the cursor back to the step of a live Pod, unless the Pod stays or the cursor is lower.
func (m *maintenance) lowerCursor(o opinion) {
	if o.stance == stays {
		return
	}
	m.liveTypes[o.step.rank] = true
	if !m.live || o.step.compare(m.cursor) < 0 {
		m.live, m.cursor = true, o.step
	}
}

// allows reports whether the maintenance allows a Pod of this opinion to be evacuated now.
func (m *maintenance) allows(o opinion) bool {
	switch o.stance {
	case stays:
		return true
	case drains:
		return o.step.compare(m.cursor) <= 0
	default:
		return false
	}
}

// holdsCurrent reports whether a live Pod of this opinion keeps the cursor where it is.
func (m *maintenance) holdsCurrent(o opinion) bool {
	return o.stance != stays && o.step == m.cursor
}

// chooseTargets marks the targets: the Pods that at least one maintenance drains and none vetoes, if all maintenances of the Node allow it
// or the Pod is under the floor.
func (s *scene) chooseTargets() {
	for _, n := range s.nodes {
		for _, p := range n.pods {
			p.targeted = p.isTarget()
		}
	}
	s.breakDeadlocks()
}

func (p *pod) isTarget() bool {
	switch {
	case !p.wanted() || p.vetoed():
		return false
	case p.Finished:
		return p.Evacuating // a finished Pod gets no new Evacuation
	default:
		return p.underFloor() || len(p.disallowing()) == 0
	}
}

// kept reports whether a Pod keeps its Evacuation although it is no target: only suspended maintenances drain it.
func (p *pod) kept() bool {
	return p.Evacuating && p.drained() && !p.wanted() && !p.vetoed()
}

// underFloor reports whether the Pod was reached before, so that it is targeted regardless of the cursors: it has an Evacuation, or the
// published rows cover it.
//
// Rows compare Pods by drain order, and maintenances may give a Pod different orders. So the rows must cover the Pod by its order in each
// maintenance that drains it and has published rows, and there must be at least one such maintenance. A maintenance that has published
// nothing for this Node is new there, and is fast-forwarded.
func (p *pod) underFloor() bool {
	if p.Evacuating {
		return true
	}
	under := false
	for i, m := range p.node.maintenances {
		if p.opinions[i].stance != drains || len(m.Published[p.node.name]) == 0 {
			continue
		}
		if !p.node.floor.cover(p.Pod, p.opinions[i].step.order) {
			return false
		}
		under = true
	}
	return under
}

// disallowing returns the maintenances that do not allow the Pod to be evacuated yet: because of their cursors, or because they are
// suspended and no other one drains the Pod.
func (p *pod) disallowing() []*maintenance {
	var result []*maintenance
	wanted := p.wanted()
	for i, m := range p.node.maintenances {
		if !m.allows(p.opinions[i]) || !wanted && p.opinions[i].stance == drains {
			result = append(result, m)
		}
	}
	return result
}

// heldBack reports whether the live Pod waits for Pods of lower steps or for a suspended maintenance: a maintenance drains it, none vetoes
// that, and it is not targeted.
func (p *pod) heldBack() bool {
	return !p.Finished && !p.targeted && p.drained() && !p.vetoed()
}

// Awaited returns the live Pods that a maintenance waits for and does not evacuate: those that must complete, and those that are
// undecided.
func Awaited(o Observation) sets.Set[types.UID] {
	awaited := sets.New[types.UID]()
	for _, n := range newScene(o).nodes {
		for _, p := range n.pods {
			if !p.Finished && p.vetoed() {
				awaited.Insert(p.UID)
			}
		}
	}
	return awaited
}
