package plan

// placeFloors collects, for each Node, what has been published for it by any of its maintenances.
func (s *scene) placeFloors() {
	for _, n := range s.nodes {
		n.floor = reaches{}
		for _, m := range n.maintenances {
			n.floor.raiseTo(m.Published[n.name], s.selectors)
		}
	}
}

// underFloor says whether the Pod is among those that have been reached before, so that it is targeted whatever the cursors
// say: it holds an Evacuation, which is the durable floor, or it is under the published rows.
//
// Rows tell Pods apart by order, and maintenances may give a Pod different orders. So it has to be under the rows by the
// order of each maintenance that wants it and has published, and of one at least. A maintenance that has published nothing
// for this Node is a newcomer there, and is fast-forwarded.
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
