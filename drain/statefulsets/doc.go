// Package statefulsets decides in which order the Pods of a StatefulSet leave: from the highest ordinal down, as the StatefulSet
// itself scales down and updates, and one at a time: the next one goes when the last one is back and ready.
//
// It only orders. Each Pod whose turn comes is left to the eviction, so budgets count as ever, and the StatefulSet makes the Pod
// anew elsewhere. A StatefulSet with podManagementPolicy Parallel says that the order doesn't matter, and one with the update
// strategy OnDelete has somebody who decides about each Pod: their Pods are left to the eviction at once.
//
// A Pod that isn't ready goes when its turn comes, like any other. One that doesn't come back holds the others until their
// progress deadline is over, and then they are evicted.
package statefulsets
