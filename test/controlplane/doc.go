// Package controlplane runs real Kubernetes control planes for tests: etcd, kube-apiserver,
// kube-controller-manager and, where asked for, kube-scheduler and kwok, which plays the
// kubelets. Nothing is mocked: admission, RBAC, the eviction API with its budgets, garbage
// collection, taint eviction and watch semantics are those of a release build.
//
//	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true, Kwok: true})
//	c, err := client.New(cluster.AdminConfig(), client.Options{})
//	err = c.Create(ctx, controlplane.NewNode("n1"))
//
// A control plane is a handful of child processes on loopback with a directory of their own.
// Any number run side by side: each has its own certificate authority and its own ports. They
// are gone when Stop returns, and also when the test process is killed (see process_linux.go).
//
// What a test can do to a control plane:
//
//   - be anybody: ConfigFor and KubeconfigFor issue client certificates for a user and groups;
//   - break it: StopComponent, KillComponent and StartComponent keep port and data;
//   - lose it: CutNetwork black-holes the connections made through ProxiedKubeconfigFor;
//   - stop one kubelet: StopKubelet, as if the machine were gone;
//   - time pods: the annotations in kubelets.go set when a pod is ready, done and gone;
//   - ask afterwards who did what to which object, in order: Audit.
//
// The programs are the ones hack/tools pins; `make tools` builds them.
package controlplane
