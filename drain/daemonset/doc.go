// Package daemonset decides how the Pods of DaemonSets leave a Node, and stay away.
//
// They can't be evicted for good: a DaemonSet replaces a Pod at once, on a cordoned Node too, since its Pods tolerate that.
// So a Node whose maintenance has come to them gets a taint of ours first, which the DaemonSet controller respects like any
// other, and then its Pods are deleted:
//
//	published drain targets have Pods of DaemonSets ─► taint the Node ─► may this Pod be deleted? ─► report, delete
//	none have any more                              ─► take the taint off: the DaemonSets run their Pods again
//
// Whether the taint is wanted follows from the NodeMaintenances alone, so a taint that nobody owns is one that isn't wanted.
//
// # A rollout in flight
//
// A DaemonSet that surges may have two Pods on the Node, the old one and the new one. Both are targeted, and both go. What the
// rollout would create next it doesn't create on a tainted Node.
//
// # A DaemonSet that tolerates the taint
//
// Its deleted Pods would come back at once, however often. CNI plugins and kube-proxy are of that kind in most clusters, so a
// drain that waited for them would never end, and one that deleted them once would gain nothing. They are left where they
// are: such a Pod counts as skipped and holds nothing back (see plan.Pod.ComesBack), and the maintenance says which
// DaemonSets it has left, and why.
package daemonset
