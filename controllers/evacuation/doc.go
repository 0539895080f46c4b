// Package evacuation carries out Evacuations in workload clusters. Two controllers share the work:
//
//   - Reconciler takes one Evacuation through its life, as drain/evacuation says: who evacuates the Pod, until when, and
//     how it ends.
//   - Evictor evicts, for one workload cluster at a time, the Pods for which no evacuator is left. It looks at all of them
//     together, so that Pods that share a PodDisruptionBudget are tried no faster than it has room, and no Node is starved by
//     another. It is driven by events of Pods and budgets; its backoff is the safety net.
package evacuation
