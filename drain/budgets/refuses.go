package budgets

// Refuses reports whether the API server refuses to evict a Pod, whatever happens to others: according to their observed status, the
// budgets of the Pod allow no disruption at all, or there are several. It returns false where the API server might evict the Pod: a status
// is out of date, or a selector is invalid, for which the API server ignores the budget.
func (i *Index) Refuses(pod Pod) bool {
	decision := i.decide(pod, nil)
	if decision.wait == nil || decision.wait.Stale {
		return false
	}
	switch decision.wait.Reason {
	case BudgetExhausted, BlockedByUnhealthyPods, BudgetSyncFailed, MultipleBudgets:
		return true
	default:
		return false
	}
}
