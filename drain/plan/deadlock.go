package plan

import "slices"

// waitGraph says, by age, which maintenances each one waits for: those that hold back a Pod of its current step. All Pods of
// a step must go before the next one begins, so a circle in it can't resolve by itself.
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

// breakDeadlocks lets the current step of the oldest go first, where maintenances wait for one another in a circle: those of
// its Pods that nobody but the circle holds back.
func (s *scene) breakDeadlocks() {
	graph := s.waitGraph()
	circles := graph.circles()
	if len(circles) == 0 {
		return
	}
	oldest := map[int]int{} // of the circle that a maintenance is in
	for _, circle := range circles {
		for _, age := range circle {
			oldest[age] = slices.Min(circle)
		}
	}
	s.eachHeldBack(func(m *maintenance, p *pod, by []*maintenance) {
		if first, ok := oldest[m.age]; !ok || first != m.age {
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

// circles returns the strongly connected components of the graph that have more than one member, by Tarjan's algorithm.
func (g waitGraph) circles() [][]int {
	t := tarjan{graph: g, index: make([]int, len(g)), low: make([]int, len(g)), onStack: make([]bool, len(g))}
	for v := range g {
		if t.index[v] == 0 {
			t.visit(v)
		}
	}
	return t.circles
}

type tarjan struct {
	graph      waitGraph
	index, low []int // index 0: not visited yet
	visited    int
	stack      []int
	onStack    []bool
	circles    [][]int
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
		t.circles = append(t.circles, component)
	}
}
