package plan

// placeCursors puts each maintenance at the lowest of its steps that holds a live Pod, on any of its Nodes: one that drains,
// one that is to complete, or one that is undecided.
//
// A Pod that appears at a lower step takes the cursor back to it, so that the Pod goes before anything else is begun. What
// has been begun is the floor's to keep: see floor.go.
func (s *scene) placeCursors() {
	for _, n := range s.nodes {
		for _, p := range n.pods {
			if p.Finished {
				continue
			}
			for i, m := range n.maintenances {
				m.hold(p.opinions[i])
			}
		}
	}
	for _, m := range s.maintenances {
		m.reached = m.reachedRows()
	}
}

func (m *maintenance) hold(o opinion) {
	if o.stance == stays {
		return
	}
	if !m.live || o.step.compare(m.cursor) < 0 {
		m.live, m.cursor = true, o.step
	}
}

// allows says whether the maintenance lets a Pod of this opinion go now.
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

// holdsCurrent says whether a live Pod of this opinion is what keeps the cursor where it is.
func (m *maintenance) holdsCurrent(o opinion) bool {
	return o.stance != stays && o.step == m.cursor
}
