// Package budgets decides which pods may be evicted now under their PodDisruptionBudgets, and says why the others wait.
//
// The API server answers an eviction that a budget refuses with an error, and leaves it to the client to try again. A drain
// that does so tries in vain for most of its time, and knows no more than the last error. Here the same decision is made
// before the request, from the budgets that are watched anyway:
//
//	NewIndex(budgets) ──► Admit(candidates) ──► admitted: the API server will accept these, as far as we know
//	                                       └──► waiting:  for which budget, and why; the budget's next event tries again
//
// The rules are those of the eviction subresource (Kubernetes 1.36, pkg/registry/core/pod/storage/eviction.go). They are
// not documented elsewhere in one place, so here they are, in the order in which they apply:
//
//  1. A pod that has finished, is pending or terminates already needs no budget.
//  2. A pod that no budget covers goes. In policy/v1 an empty selector covers the whole namespace, none covers nothing.
//  3. A pod that more than one budget covers can't be evicted at all.
//  4. A pod that isn't ready goes without using room if the budget says AlwaysAllow, or if the application has as many
//     healthy pods as it needs (and needs any); see KEP-3017.
//  5. All others need room: status.disruptionsAllowed, if the disruption controller has seen the budget's present
//     generation and has caught up with earlier evictions.
//
// Two things are ours. Status that is older than what we have done ourselves counts as unknown, so that two evictions
// don't use the same room. And a budget whose selector can't be parsed makes the pods of its namespace wait: the API
// server passes over such a budget, but whoever wrote it wanted to protect something.
//
// Everything here is a pure function; a Budget and an Index are immutable. Nothing panics, whatever tenants write.
package budgets
