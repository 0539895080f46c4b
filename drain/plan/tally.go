package plan

import "cmp"

// tally summarizes the live Pods of one Node for a maintenance.
type tally struct {
	pending, evacuating, skipped int32

	live     bool // a Pod keeps the Node from being drained
	targeted bool // a Pod that the maintenance drains is targeted
	later    bool // a Pod that the maintenance drains is beyond its cursor, and is not targeted

	// overtakenBy are the older maintenances because of which Pods are evacuated that this one does not allow yet.
	overtakenBy members
	// limitedBy are the maintenances that hold back Pods that this one allows, because of their cursors.
	limitedBy members
	// forbiddenBy are the maintenances that veto the evacuation of Pods that this one allows.
	forbiddenBy members
	// forbidden is the first vetoed Pod at the cursor, forbiddenLater the first one beyond.
	forbidden, forbiddenLater *pod
}

type members map[*maintenance]bool

// with returns the set with more members. It may modify the set, unless it is nil.
func (s members) with(maintenances ...*maintenance) members {
	if s == nil && len(maintenances) > 0 {
		s = members{}
	}
	for _, m := range maintenances {
		s[m] = true
	}
	return s
}

func (n *node) countPods() []tally {
	result := make([]tally, len(n.maintenances))
	for _, p := range n.pods {
		if p.Finished {
			continue
		}
		var holding, forbidding []*maintenance
		switch {
		case p.heldBack():
			holding = p.disallowing()
		case p.vetoed():
			forbidding = p.vetoing()
		}
		for i := range n.maintenances {
			result[i].count(p, i, holding, forbidding)
		}
	}
	return result
}

// count adds a live Pod for the i-th maintenance of its Node.
func (t *tally) count(p *pod, i int, holding, forbidding []*maintenance) {
	m, o := p.node.maintenances[i], p.opinions[i]
	if o.stance == stays {
		t.skipped++
		return
	}
	t.live = true
	switch {
	case o.stance == completes:
	case p.Evacuating:
		t.evacuating++
	default:
		t.pending++
	}
	switch atCursor := o.step.compare(m.cursor) <= 0; {
	case p.targeted:
		t.targeted = true
		if !atCursor {
			t.overtakenBy = t.overtakenBy.with(p.overtaking(i)...)
		}
	case len(forbidding) > 0 && atCursor:
		t.forbidden = firstPod(t.forbidden, p)
		if o.stance == drains {
			t.forbiddenBy = t.forbiddenBy.with(forbidding...)
		}
	case len(forbidding) > 0:
		t.forbiddenLater = firstPod(t.forbiddenLater, p)
		t.later = t.later || o.stance == drains
	case atCursor:
		t.limitedBy = t.limitedBy.with(holding...)
	default:
		t.later = true
	}
}

func (p *pod) vetoing() []*maintenance {
	var result []*maintenance
	for i, m := range p.node.maintenances {
		if p.opinions[i].stance.vetoes() {
			result = append(result, m)
		}
	}
	return result
}

// overtaking returns the maintenances older than the i-th one of the Node that drain the Pod now.
func (p *pod) overtaking(i int) []*maintenance {
	var result []*maintenance
	for j, m := range p.node.maintenances[:i] { // oldest first
		if p.opinions[j].stance == drains && m.allows(p.opinions[j]) {
			result = append(result, m)
		}
	}
	return result
}

// firstPod returns the first of two Pods by name of Node, namespace and name; a may be nil.
func firstPod(a, b *pod) *pod {
	if a == nil || cmp.Or(cmp.Compare(b.node.name, a.node.name), cmp.Compare(b.Namespace, a.Namespace),
		cmp.Compare(b.Name, a.Name), cmp.Compare(b.UID, a.UID)) < 0 {
		return b
	}
	return a
}
