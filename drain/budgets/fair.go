package budgets

import "slices"

// FairOrder reorders candidates so that Nodes take turns: first the first pod of each Node, then the second ones, and so
// on; within a Node the order stays. Room that is too little for all is thus shared among Nodes, and a Node with many
// pods, or one that comes first in a list, doesn't starve the others (E23). Pods whose evictions are under way have had their
// Node's first turns. The input isn't changed.
func FairOrder(candidates []Candidate) []Candidate {
	type ranked struct {
		Candidate
		rank int
	}
	count := map[string]int{}
	all := make([]ranked, 0, len(candidates))
	for _, underWay := range []bool{true, false} {
		for _, c := range candidates {
			if c.UnderWay == underWay {
				all = append(all, ranked{c, count[c.Pod.Node]})
				count[c.Pod.Node]++
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank - b.rank })

	fair := make([]Candidate, 0, len(all))
	for _, r := range all {
		fair = append(fair, r.Candidate)
	}
	return fair
}
