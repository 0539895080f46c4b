// Package controlplane runs real Kubernetes control planes for tests: etcd, kube-apiserver,
// kube-controller-manager and, on request, kube-scheduler and kwok, which simulates the kubelets.
// Nothing is mocked: admission, RBAC, the eviction API with PodDisruptionBudgets, garbage
// collection, taint eviction and watch semantics are those of a release build.
//
//	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true, Kwok: true})
//	c, err := client.New(cluster.AdminConfig(), client.Options{})
//	err = c.Create(ctx, controlplane.NewNode("n1"))
//
// A control plane is a few child processes on loopback with a separate directory. Any number can
// run in parallel: each has its own certificate authority and ports. They have exited when Stop
// returns, and also exit when the test process is killed (see process_linux.go).
//
// A test can
//
//   - act as any user: ConfigFor and KubeconfigFor issue client certificates for a user and groups;
//   - stop and start components: StopComponent, KillComponent and StartComponent keep port and data;
//   - cut the network: CutNetwork black-holes the connections made through ProxiedKubeconfigFor;
//   - stop one kubelet: StopKubelet, as if the machine had lost power;
//   - time Pods: the annotations in kubelets.go set when a Pod becomes ready, succeeds and is removed;
//   - read afterwards which user did what to which object, in order: Audit.
//
// hack/tools pins the programs; `make tools` builds them.
package controlplane
