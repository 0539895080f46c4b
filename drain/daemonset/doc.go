// Package daemonset decides when the Pods of DaemonSets on a Node are deleted, and prevents that they are recreated during the drain.
//
// An eviction does not drain such a Pod: its DaemonSet recreates it immediately, also on a cordoned Node, since DaemonSet Pods
// tolerate the cordon. Therefore a Node gets a taint of this project when the drain reaches its DaemonSet Pods. The DaemonSet
// controller respects the taint like any other. Then the Pods are deleted:
//
//	published drain targets include DaemonSet Pods ─► taint the Node ─► may this Pod be deleted? ─► report, delete
//	no published drain target includes them        ─► remove the taint: the DaemonSets recreate their Pods
//
// The published drain targets alone determine whether a Node needs the taint, so an orphaned taint is removed.
//
// # Rollout in progress
//
// During a rollout with maxSurge a DaemonSet may have two Pods on the Node, the old one and the new one. Both are targeted and
// deleted. The rollout creates no further Pod on a tainted Node.
//
// # DaemonSet that tolerates the taint
//
// Such a DaemonSet recreates its Pods immediately after each deletion. In most clusters CNI plugins and kube-proxy tolerate all
// taints, so a drain that waits for their Pods never finishes, and a single deletion has no lasting effect. These Pods stay on the
// Node: they count as skipped and do not block the drain (see plan.Pod.IsRecreated). The maintenance reports which DaemonSets are
// concerned, and why.
package daemonset
