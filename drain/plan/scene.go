package plan

import (
	"cmp"
	"maps"
	"slices"
)

// scene is an indexed Observation, with the opinion of each maintenance on each Pod.
type scene struct {
	maintenances []*maintenance // oldest first
	nodes        []*node        // by name
	selectors    selectors
}

type maintenance struct {
	*Maintenance
	age   int // position in scene.maintenances, 0 for the oldest
	plan  plan
	nodes []*node // by name
	// selectors are the keys of the rows of this plan.
	selectors map[rowKey]bool

	// live means that a Pod keeps the maintenance from being drained. The first such Pods are at the cursor.
	live   bool
	cursor step
	// liveTypes are the types of these Pods.
	liveTypes [ranks + 1]bool
	reached   reaches // what the maintenance has reached, without the others

	trail trail
}

type node struct {
	name         string
	maintenances []*maintenance // oldest first
	pods         []*pod
	floor        reaches // what has been published

	daemonSetsKept bool // see Observation.DaemonSetsKept
}

type pod struct {
	*Pod
	node     *node
	opinions []opinion // of node.maintenances, in the same order
	targeted bool
}

// newScene indexes an Observation. It omits the Pods of Nodes that no maintenance selects.
func newScene(o Observation) *scene {
	s := &scene{selectors: selectors{}}
	byName := map[string]*node{}
	s.addMaintenances(o.Maintenances, byName)

	s.nodes = slices.SortedFunc(maps.Values(byName), func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	for _, n := range s.nodes {
		n.daemonSetsKept = o.DaemonSetsKept.Has(n.name)
		for _, m := range n.maintenances {
			m.nodes = append(m.nodes, n)
		}
	}
	s.addPods(o.Pods, byName)
	return s
}

func (s *scene) addMaintenances(observed []Maintenance, byName map[string]*node) {
	for i := range observed {
		s.maintenances = append(s.maintenances, &maintenance{Maintenance: &observed[i]})
	}
	slices.SortStableFunc(s.maintenances, func(a, b *maintenance) int { return older(a.Maintenance, b.Maintenance) })
	for age, m := range s.maintenances {
		m.age = age
		m.plan = newPlan(m.Maintenance, s.selectors)
		m.selectors = m.plan.rowKeys()
		for _, name := range m.Nodes {
			n, ok := byName[name]
			if !ok {
				n = &node{name: name}
				byName[name] = n
			}
			if len(n.maintenances) == 0 || n.maintenances[len(n.maintenances)-1] != m {
				n.maintenances = append(n.maintenances, m)
			}
		}
	}
}

func (s *scene) addPods(observed []Pod, byName map[string]*node) {
	pods := make([]pod, 0, len(observed))
	for i := range observed {
		n, ok := byName[observed[i].Node]
		if !ok {
			continue
		}
		p := pod{Pod: &observed[i], node: n, opinions: make([]opinion, len(n.maintenances))}
		for j, m := range n.maintenances {
			p.opinions[j] = m.opinionOf(p.Pod)
		}
		pods = append(pods, p)
		n.pods = append(n.pods, &pods[len(pods)-1])
	}
}

// older orders maintenances by age, the oldest first.
func older(a, b *Maintenance) int {
	return cmp.Or(a.DrainStart.Compare(b.DrainStart), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// drained reports whether a maintenance drains the Pod.
func (p *pod) drained() bool {
	return slices.ContainsFunc(p.opinions, func(o opinion) bool { return o.stance == drains })
}

// wanted reports whether a maintenance that is not suspended drains the Pod.
func (p *pod) wanted() bool {
	for i, m := range p.node.maintenances {
		if p.opinions[i].stance == drains && !m.Suspended {
			return true
		}
	}
	return false
}

// vetoed reports whether a maintenance vetoes the evacuation of the Pod.
func (p *pod) vetoed() bool {
	return slices.ContainsFunc(p.opinions, func(o opinion) bool { return o.stance.vetoes() })
}
