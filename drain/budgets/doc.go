// Package budgets decides which Pods may be evicted now under their PodDisruptionBudgets, and why the others wait.
//
// The API server answers an eviction that a budget does not allow with an error, and the client has to retry. Here the same decision is
// made before the request, from the budgets that are watched anyway:
//
//	NewIndex(budgets) ──► Admit(candidates) ──► admitted: the API server will accept these evictions, as far as is known
//	                                       └──► waiting:  for which budget, and why; the next event of the budget triggers a retry
//
// The rules are those of the eviction subresource (Kubernetes 1.36, pkg/registry/core/pod/storage/eviction.go), in this order:
//
//  1. A Pod that has finished, is pending or is terminating needs no budget.
//  2. A Pod that no budget selects is evicted. In policy/v1 an empty selector selects the whole namespace, a missing one selects nothing.
//  3. A Pod that more than one budget selects cannot be evicted.
//  4. A Pod that is not ready is evicted without a disruption if the budget has the policy AlwaysAllow, or if the application has as many
//     healthy Pods as it requires (and requires any); see KEP-3017.
//  5. All others need a disruption: status.disruptionsAllowed, if the disruption controller has observed the current generation of the
//     budget and has processed earlier evictions.
//
// OldestFirst is the order of the candidates: the oldest drain gets the disruptions first.
//
// Granted finds the waiting Pods whose disruption the API server has already granted to an eviction that was cut off.
//
// Observed follows the events of budgets and finds the budget that a Pod has lost a moment ago. Pauses decides how long its eviction waits
// then.
//
// Evictions are those in flight, and limit how many more may begin on a Node and in a Namespace.
//
// Two rules are added. A status that does not include our own evictions counts as unknown, so that two evictions do not use the same
// disruption. And a budget whose selector is invalid blocks the Pods of its namespace: the API server ignores such a budget, but its author
// wanted to protect Pods.
package budgets
