package plan

// trail describes what keeps the cursor of a maintenance at its step.
type trail struct {
	// evacuating are the Nodes on which Pods of the current step are targeted, by name.
	evacuating []*node
	// forbidden is the first Pod of the current step that a maintenance vetoes.
	forbidden *pod
	// heldBy are the maintenances that do not allow Pods of the current step to be evacuated yet.
	heldBy members

	// root is the first cause that the maintenance waits for.
	root root
}

// root is a Node whose Pods terminate or must complete, and the maintenance that waits for them. The zero root means that there is no such
// Node.
type root struct {
	node *node
	by   *maintenance
}

// followBlockers determines what each maintenance waits for.
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

// recordTrail adds a live Pod to the trails of the maintenances that have it at their current step.
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

// ownRoot returns what a maintenance waits for, if that is not another maintenance.
func (m *maintenance) ownRoot() root {
	switch t := m.trail; {
	case len(t.evacuating) > 0:
		return root{node: t.evacuating[0], by: m}
	case t.forbidden != nil:
		by, _ := t.forbidden.forbidder(m)
		return root{node: t.forbidden.node, by: by}
	case m.Suspended && m.live:
		return root{node: m.nodes[0], by: m}
	default:
		return root{}
	}
}

// forbidder returns the maintenance that vetoes the evacuation of the Pod, with its stance: the preferred one if it does, or else the
// oldest.
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

// spreadRoots gives each maintenance that waits for others the root of the nearest one. It starts at the roots, so that it terminates even
// if maintenances wait for one another in a cycle.
func (s *scene) spreadRoots() {
	waiting := map[*maintenance][]*maintenance{} // those that wait for the key, oldest first
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

// root returns the root of the oldest maintenance.
func (s members) root() root {
	var oldest *maintenance
	for m := range s {
		if oldest == nil || m.age < oldest.age {
			oldest = m
		}
	}
	return oldest.trail.root
}
