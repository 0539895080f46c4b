// Package realnode starts real nodes: a kubelet with containerd and runc, whose Pods are processes that get real signals.
// Several fit on a machine, and nothing of the machine is changed but a cgroup for each, which goes with it.
//
//	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true})
//	node := realnode.ForTest(t, cluster, realnode.Options{Name: "n1"})
//	node.PowerButton()                  // logind delays, and powers off
//	node.CutPower()                     // everything on it is gone at once
//	node.Boot()                         // with what was on its disk
//	node.Journal()                      // what its Pods and logind did, in order
//
// A node has mount and PID namespaces of its own, a D-Bus, and a logind (see guest/). It shares the network with the machine:
// Pods use the host's, and nodes differ in the port of their kubelets.
//
// It needs Linux and root, and dbus-daemon. Skip says what is missing.
package realnode
