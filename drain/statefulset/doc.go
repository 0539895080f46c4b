// Package statefulset decides in which order the Pods of a StatefulSet are evicted: from the highest ordinal down, as the
// StatefulSet itself scales down and updates, and one at a time: the next Pod is evicted when the replacement of the last one is
// ready.
//
// It only orders. Each Pod whose turn comes is left to the eviction, so budgets count as ever, and the StatefulSet controller
// recreates the Pod elsewhere. A StatefulSet with podManagementPolicy Parallel says that the order doesn't matter, and one with the update
// strategy OnDelete has somebody who decides about each Pod: their Pods are left to the eviction at once.
//
// # The order is a courtesy
//
// PodDisruptionBudgets protect the availability of an application. The order only makes an eviction gentler, so it never holds a
// Node for long (E30):
//
//   - A Pod waits for one replica for at most Courtesy.
//   - A replica that was not ready before the drain of the Pod's Node began is not waited for, nor is one that was being deleted.
//   - A replica that does not exist holds for ten seconds: the API does not tell since when it is missing, and the
//     StatefulSet controller recreates at once what was evicted.
//
// A replica that was deleted or created in the last 30 seconds before the drain is waited for where another drain was in progress
// then: Machines that are deleted one after the other do not have two replicas evicted at once.
package statefulset
