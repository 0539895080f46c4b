// Package evictor evicts the Pods that have no evacuator left, for one workload cluster at a time. One pass decides about all of them
// together, so that it requests no more evictions than the PodDisruptionBudgets allow, and the oldest drain gets the disruptions first:
//
//	pass.collect ─► budgets.Admit ─► startEvictions ─► handleResponse
//	                            └──► pass.report: the status of the Evacuation says what the Pod waits for
//
// Where admission webhooks wait for eviction requests, startSignals also sends those that budgets refuse (signals.go, drain/signals).
//
// A Pod is not evicted yet because a PodDisruptionBudget allows no disruption or was deleted a moment ago (drain/budgets), because its last
// eviction was refused (refusal.go) or sent a moment ago (backoff.go), because too many evictions are in flight (inflight.go), or because
// the manager shuts down (shutdowngate.go). Events of Pods and PodDisruptionBudgets trigger a pass; the backoff is only a safety net.
package evictor
