// Package statefulset decides in which order the Pods of a StatefulSet are evicted. The highest ordinal is first, as when the
// StatefulSet scales down and updates. The Pods are evicted one at a time: the next Pod is evicted when the replacement of the last
// one is ready. The order is one for all Nodes. NodeMaintenances request it with statefulSetPods: Ordered.
//
// The package only orders Pods. The evictor evicts each Pod that is released, so PodDisruptionBudgets apply, and the StatefulSet
// controller recreates the Pod on another Node. Pods with podManagementPolicy Parallel or the update strategy OnDelete are released
// immediately: with Parallel the order does not matter, and with OnDelete a user or another controller decides about each Pod.
//
// # The order delays a drain for a limited time
//
// PodDisruptionBudgets protect the availability of an application. The order only reduces the impact of evictions. So the waits have limits
// (E30):
//
//   - A Pod waits for one replica for at most MaxWait, and for several from the highest ordinal down, each of them once.
//   - A replica that was not ready before the drain of the Pod's Node began is not waited for, nor is one that was being deleted.
//   - A replica that the scheduler reports as unschedulable is not waited for: its volume may be on a Node that is drained.
//   - A Pod waits for a replica that does not exist for ten seconds: the API does not tell since when it is missing, and the
//     StatefulSet controller recreates an evicted Pod immediately.
//
// A Pod also waits for a replica that was deleted or created in the last 30 seconds before the drain, if another drain was in
// progress then: so two replicas are not evicted at the same time when Machines are deleted one after the other.
package statefulset
