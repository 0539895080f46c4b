// Package nodeagent is an experimental agent that runs on each Node beside the kubelet. It does what KEP-2000 and KEP-4212 propose for
// the kubelet: it drains a Node that shuts down before the power goes off, and keeps static Pods terminated during a maintenance.
//
// The packages shutdown and hold decide what to do; they are pure. The packages logind, containers, kubelet, manifests and cluster
// observe and act. This package connects them.
package nodeagent
