// Package nodeagent is the agent that does, beside the kubelet, what KEP-2000 and KEP-4212 want of the kubelet: a Node that shuts
// down is drained before the lights go out, and static Pods stop for a maintenance and stay stopped. It is experimental.
//
// What to do is decided in shutdown and hold, which are pure. logind, containers, kubelet, manifests and cluster are what it acts
// through; this package has them work together.
package nodeagent
