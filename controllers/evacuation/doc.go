// Package evacuation carries out Evacuations in workload clusters. Two controllers share the work:
//
//   - Reconciler reconciles one Evacuation, as drain/evacuation decides: it selects the active evacuator, enforces the progress
//     deadline, and deletes the Evacuation at the end.
//   - Evictor evicts, for one workload cluster at a time, the Pods that have no evacuator left. It decides about all of them together,
//     so that it requests no more evictions than the PodDisruptionBudgets allow, and no Node starves another. Events of Pods and
//     PodDisruptionBudgets trigger it; the backoff is only a safety net.
package evacuation
