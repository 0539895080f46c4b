package plan

// chooseTargets marks the Pods that may go now: those that some maintenance wants to go and none forbids to touch, when all
// maintenances of the Node allow it or it has been reached before.
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
		return p.Evacuating // nothing is begun for it
	default:
		return p.underFloor() || len(p.disallowing()) == 0
	}
}

// disallowing returns the maintenances that don't let the Pod go yet.
func (p *pod) disallowing() []*maintenance {
	var result []*maintenance
	for i, m := range p.node.maintenances {
		if !m.allows(p.opinions[i]) {
			result = append(result, m)
		}
	}
	return result
}

// heldBack says whether the live Pod waits for its turn: it is wanted, not forbidden to touch, and not targeted.
func (p *pod) heldBack() bool {
	return !p.Finished && !p.targeted && p.wanted() && !p.vetoed()
}
