// Package realnode starts real nodes: a kubelet with containerd and runc, whose Pods are processes that receive real signals. A machine can
// run several. A node changes nothing on the machine except for its own cgroup, which is removed with the node.
//
//	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true})
//	node := realnode.ForTest(t, cluster, realnode.Options{Name: "n1"})
//	node.PowerButton()                  // logind waits for its locks, and powers off
//	node.CutPower()                     // kills all processes of the node
//	node.Boot()                         // starts it with the content of its disk
//	node.Journal()                      // what its Pods and logind did, in order
//
// A node has its own mount and PID namespaces, D-Bus and logind (see guest/). It shares the network with the machine: Pods use the network
// of the host, and the kubelets of several nodes have different ports.
//
// A node needs Linux, root and dbus-daemon. Skip skips a test and names what is missing. A node with CRI-O also needs
// crio, conmon and pinns.
package realnode
