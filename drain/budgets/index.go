package budgets

import (
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
)

// Index finds the budgets of a pod. It is a snapshot: make a new one when a budget has changed.
type Index struct {
	byNamespace map[string][]*Budget // each sorted by name
	stale       map[*Budget]bool
}

// NewIndex parses the budgets. The function stale, which may be nil, says of which ones the cached status is older than
// what we ourselves did: their numbers still count an eviction of ours as room. They have no known room until their
// next event.
func NewIndex(pdbs []*policyv1.PodDisruptionBudget, stale func(*policyv1.PodDisruptionBudget) bool) *Index {
	budgets := make([]*Budget, 0, len(pdbs))
	for _, pdb := range pdbs {
		if pdb != nil {
			budgets = append(budgets, New(pdb))
		}
	}
	return NewIndexOf(budgets, stale)
}

// NewIndexOf is NewIndex for a caller that keeps the parsed budgets, to parse only those that have changed.
func NewIndexOf(budgets []*Budget, stale func(*policyv1.PodDisruptionBudget) bool) *Index {
	index := &Index{byNamespace: map[string][]*Budget{}, stale: map[*Budget]bool{}}
	for _, b := range budgets {
		index.byNamespace[b.Namespace()] = append(index.byNamespace[b.Namespace()], b)
		if stale != nil && stale(b.pdb) {
			index.stale[b] = true
		}
	}
	for _, list := range index.byNamespace {
		slices.SortStableFunc(list, func(a, b *Budget) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return index
}

// Covering returns the budgets that cover a pod or, if they can't be read, may cover it, by name. It looks at each budget
// of the pod's namespace once.
func (i *Index) Covering(pod Pod) []*Budget {
	var covering []*Budget
	for _, b := range i.byNamespace[pod.Namespace] {
		if b.Covers(pod.Namespace, pod.Labels) {
			covering = append(covering, b)
		}
	}
	return covering
}
