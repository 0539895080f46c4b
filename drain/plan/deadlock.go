package plan

import "slices"

// waitGraph contains, by age, the maintenances that each one waits for: those that hold back a Pod of its current step. All Pods of a step
// must terminate before the next step starts, so a cycle never resolves.
type waitGraph [][]int

func (s *scene) waitGraph() waitGraph {
	graph := make(waitGraph, len(s.maintenances))
	seen := map[[2]int]bool{}
	s.eachHeldBack(func(m *maintenance, _ *pod, by []*maintenance) {
		for _, other := range by {
			if edge := [2]int{m.age, other.age}; !seen[edge] {
				seen[edge] = true
				graph[m.age] = append(graph[m.age], other.age)
			}
		}
	})
	for _, others := range graph {
		slices.Sort(others)
	}
	return graph
}

// eachHeldBack calls visit for each maintenance and each Pod of its current step that others hold back.
func (s *scene) eachHeldBack(visit func(m *maintenance, p *pod, by []*maintenance)) {
	for _, n := range s.nodes {
		if len(n.maintenances) < 2 {
			continue
		}
		for _, p := range n.pods {
			if !p.heldBack() {
				continue
			}
			by := p.disallowing()
			for i, m := range n.maintenances {
				if p.opinions[i].stance == drains && m.holdsCurrent(p.opinions[i]) {
					visit(m, p, by)
				}
			}
		}
	}
}

// breakDeadlocks targets the current step of the oldest maintenance of each cycle in the wait graph: those of its Pods that only
// maintenances of the cycle hold back.
func (s *scene) breakDeadlocks() {
	graph := s.waitGraph()
	cycles := graph.cycles()
	if len(cycles) == 0 {
		return
	}
	oldest := map[int]int{} // by maintenance, of its cycle
	for _, cycle := range cycles {
		for _, age := range cycle {
			oldest[age] = slices.Min(cycle)
		}
	}
	s.eachHeldBack(func(m *maintenance, p *pod, by []*maintenance) {
		if first, ok := oldest[m.age]; !ok || first != m.age || !p.wanted() {
			return
		}
		if !slices.ContainsFunc(by, func(other *maintenance) bool {
			first, ok := oldest[other.age]
			return !ok || first != m.age
		}) {
			p.targeted = true
		}
	})
}

// cycles returns the strongly connected components of the graph with more than one member, by Tarjan's algorithm.
func (g waitGraph) cycles() [][]int {
	t := tarjan{graph: g, index: make([]int, len(g)), low: make([]int, len(g)), onStack: make([]bool, len(g))}
	for v := range g {
		if t.index[v] == 0 {
			t.visit(v)
		}
	}
	return t.cycles
}

type tarjan struct {
	graph      waitGraph
	index, low []int // index 0: not visited yet
	visited    int
	stack      []int
	onStack    []bool
	cycles     [][]int
}

func (t *tarjan) visit(v int) {
	t.visited++
	t.index[v], t.low[v] = t.visited, t.visited
	t.stack, t.onStack[v] = append(t.stack, v), true
	for _, w := range t.graph[v] {
		if t.index[w] == 0 {
			t.visit(w)
			t.low[v] = min(t.low[v], t.low[w])
		} else if t.onStack[w] {
			t.low[v] = min(t.low[v], t.index[w])
		}
	}
	if t.low[v] != t.index[v] {
		return
	}
	start := slices.Index(t.stack, v)
	component := slices.Clone(t.stack[start:])
	t.stack = t.stack[:start]
	for _, w := range component {
		t.onStack[w] = false
	}
	if len(component) > 1 {
		t.cycles = append(t.cycles, component)
	}
}
