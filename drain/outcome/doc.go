// Package outcome decides what became of the Pods that drains have evicted: replaced by a ready Pod, by one that is not ready or by one
// that is Pending, or not replaced.
//
//	Begin      the evicted Pods of a drain that has ended          ──►  an outcome in which they are unknown
//	Read       outcomes of one workload cluster, its Pods now      ──►  the outcomes with what became of them
//	Due, Next  an outcome, the time                                ──►  when it is read
//
// Kubernetes does not record which Pod replaces which. So Read compares, for each controller, how many Pods were evicted with the Pods that
// were created since then, and with the number that the controller wants. What is missing is attributed to the drains before what is ready:
// the outcome of a drain may be better than Read says, and is not worse. Drains that end at the same time share controllers, so they are
// read together: no Pod replaces two evicted ones.
//
// The state is the outcome itself, which is stored in the API. An application whose Pods are all replaced by ready ones is removed from its
// list, and is not read again.
package outcome
