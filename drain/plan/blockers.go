package plan

// trail is what keeps a maintenance at its cursor.
type trail struct {
	// evacuating are the Nodes, by name, where Pods of the current step are targeted.
	evacuating []*node
	// forbidden is the first Pod of the current step that must not be touched.
	forbidden *pod
	// heldBy are the maintenances that hold back Pods of the current step.
	heldBy members

	// root is what the maintenance waits for in the end.
	root root
}

// root is a Node where something really is to happen (Pods leave, or complete), and the maintenance that waits for it. The
// zero root is nowhere.
type root struct {
	node *node
	by   *maintenance
}

// followBlockers finds out what each maintenance waits for.
func (s *scene) followBlockers() {
	for _, n := range s.nodes {
		for _, p := range n.pods {
			if !p.Finished {
				p.recordTrail()
			}
		}
	}
	for _, m := range s.maintenances {
		m.trail.root = m.ownRoot()
	}
	s.spreadRoots()
}

// recordTrail notes what a live Pod means to the maintenances that have it at their current step.
func (p *pod) recordTrail() {
	var holding []*maintenance
	vetoed := p.vetoed()
	if p.heldBack() {
		holding = p.disallowing()
	}
	for i, m := range p.node.maintenances {
		t := &m.trail
		switch {
		case !m.holdsCurrent(p.opinions[i]):
		case vetoed:
			t.forbidden = firstPod(t.forbidden, p)
		case !p.targeted:
			t.heldBy = t.heldBy.with(holding...)
		case len(t.evacuating) == 0 || t.evacuating[len(t.evacuating)-1] != p.node:
			t.evacuating = append(t.evacuating, p.node)
		}
	}
}

// ownRoot is what a maintenance waits for when that isn't another one.
func (m *maintenance) ownRoot() root {
	switch t := m.trail; {
	case len(t.evacuating) > 0:
		return root{node: t.evacuating[0], by: m}
	case t.forbidden != nil:
		by, _ := t.forbidden.forbidder(m)
		return root{node: t.forbidden.node, by: by}
	default:
		return root{}
	}
}

// forbidder returns who forbids to touch the Pod, and why: the given maintenance, or else the oldest that does.
func (p *pod) forbidder(preferred *maintenance) (*maintenance, stance) {
	var by *maintenance
	var why stance
	for i, m := range p.node.maintenances {
		if o := p.opinions[i]; o.stance.vetoes() && (by == nil || m == preferred) {
			by, why = m, o.stance
		}
	}
	return by, why
}

// spreadRoots gives each maintenance that waits for others the root of the nearest one. It goes from the roots outwards, so
// that it always ends, also when maintenances wait for one another in a circle.
func (s *scene) spreadRoots() {
	waiting := map[*maintenance][]*maintenance{} // who waits for the key, oldest first
	var queue []*maintenance
	for _, m := range s.maintenances {
		if m.trail.root != (root{}) {
			queue = append(queue, m)
		}
		for other := range m.trail.heldBy {
			waiting[other] = append(waiting[other], m)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		known := queue[0]
		for _, m := range waiting[known] {
			if m.trail.root == (root{}) {
				m.trail.root = known.trail.root
				queue = append(queue, m)
			}
		}
	}
}

// root returns what the oldest of the maintenances waits for.
func (s members) root() root {
	var oldest *maintenance
	for m := range s {
		if oldest == nil || m.age < oldest.age {
			oldest = m
		}
	}
	return oldest.trail.root
}
