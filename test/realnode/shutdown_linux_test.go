package realnode_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// newShutdownScene returns a scene whose agents have ten minutes, so that a busy machine does not reach the deadline: the tests are not
// about it.
func newShutdownScene(t *testing.T) *scene {
	t.Helper()
	s := newScene(t)
	s.configure("{shutdownGracePeriod: 600s, shutdownGracePeriodCriticalPods: 20s}")
	return s
}

// workload returns ten Pods for a node that shuts down. One of the regular Pods ignores SIGTERM.
func workload(prefix string) (regular, critical []*corev1.Pod) {
	for i := range 6 {
		regular = append(regular, realnode.NewPod(fmt.Sprintf("%s-regular-%d", prefix, i), "1s"))
	}
	for i := range 3 {
		critical = append(critical, realnode.NewPod(fmt.Sprintf("%s-critical-%d", prefix, i), "500ms", realnode.In("kube-system"),
			realnode.Class("system-cluster-critical")))
	}
	return append(regular, realnode.NewPod(prefix+"-stuck", "forever", realnode.Grace(2))), critical
}

func names(pods []*corev1.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	root := newShutdownScene(t)
	t.Run("S1, S3, S66: a NodeMaintenance drains the Node, and the agent releases the lock after the last Pod has terminated", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "connected"})
		regular, critical := workload("c")
		s.run(node, append(regular, critical...)...)
		s.create(s.workload.Client, daemonSet("c-daemon", node.Name()))
		s.Expect(node.WriteStaticPod(realnode.NewPod("c-static", "500ms"))).To(Succeed())
		s.awaitStarted(node, "c-daemon", 1)
		s.awaitStarted(node, "c-static", 1)
		s.awaitPod("c-static-connected")
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, append(names(regular[:6]), names(critical)...)...)
		s.expectGraceful(journal, "c-daemon", "c-static")
		s.expectOrder(journal, names(regular[:6]), names(critical))
		s.expectOrder(journal, names(critical), []string{"c-daemon", "c-static"})
		s.expectOrder(journal, []string{"c-daemon"}, []string{"c-static"})
		s.Expect(journal.Count("c-stuck", "SIGTERM")).To(Equal(1))
		s.Expect(s.agentCondition(s, "connected").Reason).To(Equal(v1alpha1.ReasonNodeShutdown))
		m := s.maintenance(s, "shutdown-connected")
		s.Expect(m.Spec.Stage).To(Equal(v1alpha1.StageDrain))
		s.Expect(m.Spec.Reason).To(Equal("node shutdown"))
		stopped, _ := journal.First(spec.Who, "stopped "+spec.Kubelet)
		ended, _ := journal.First("c-static", "ended")
		s.Expect(ended.Before(stopped)).To(BeTrue(), "the kubelet must terminate the Pods")
		s.expectNoKubelet(journal)
	})

	t.Run("S15, S16: terminates the Pods that remain on the drained Node by priority, before it releases the lock", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "remains"})
		s.run(node, realnode.NewPod("r-regular", "1s"))
		s.create(s.workload.Client,
			tolerateAll(daemonSet("r-logs", node.Name(), realnode.Grace(60))),
			tolerateAll(daemonSet("r-cni", node.Name(), realnode.Grace(60), realnode.In("kube-system"), realnode.Class("system-node-critical"))))
		s.Expect(node.WriteStaticPod(realnode.NewPod("etcd", "500ms", realnode.In("kube-system"), realnode.Class("system-node-critical")))).To(Succeed())
		for _, name := range []string{"r-logs", "r-cni", "etcd"} {
			s.awaitStarted(node, name, 1)
		}
		begin, err := s.workload.Audit().Mark()
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "r-regular", "r-logs", "r-cni", "etcd")
		s.expectOrder(journal, []string{"r-regular"}, []string{"r-logs"})
		s.expectOrder(journal, []string{"r-logs"}, []string{"r-cni", "etcd"})
		for _, name := range []string{"r-logs", "r-cni", "etcd"} {
			s.Expect(journal.Count(name, "started")).To(Equal(1), "the kubelet restarted %s", name)
		}
		s.Expect(journal.Of(spec.Who)).To(ContainElement("stopped "+spec.Kubelet), "a running kubelet restarts Pods that the agent terminates")
		s.expectDrained("shutdown-remains")
		s.expectExcludedBeforeEviction(begin, "remains", "r-regular")
	})

	t.Run("S87: Pods that are created during a shutdown terminate gracefully, too, and none starts after the agent has stopped the kubelet", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "late"})
		s.run(node, realnode.NewPod("l-slow", spec.UntilReleased, realnode.Grace(600)))
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("l-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.Eventually(func() string { return s.agentCondition(s, "late").Message }, eventually, pace).
			Should(ContainSubstring("The kubelet still starts Pods that are bound to the Node"))

		bound := func(name string, labels map[string]string) *corev1.Pod {
			pod := realnode.NewPod(name, "1s")
			pod.Labels, pod.Spec.NodeName = labels, node.Name()
			return pod
		}
		evicted, skipped := bound("l-evicted", nil), bound("l-skipped", map[string]string{clusterv1.PodDrainLabel: "skip"})
		logs := tolerateAll(daemonSet("l-logs", node.Name(), realnode.Grace(60)))
		logs.Spec.Template.Spec.Containers[0].Args = []string{"app", "8s"}
		s.create(s.workload.Client, evicted, skipped, logs)
		s.Expect(node.WriteStaticPod(realnode.NewPod("l-static", "500ms"))).To(Succeed())
		created := []string{"l-skipped", "l-logs", "l-static"}
		for _, name := range created {
			s.awaitStarted(node, name, 1)
		}
		s.Expect(node.Release("l-slow")).To(Succeed()) // the Pods have started while the Node is drained

		s.Eventually(func() []string { return node.Journal().Of(spec.Who) }, eventually, pace).Should(ContainElement("stopped " + spec.Kubelet))
		s.create(s.workload.Client, bound("l-never", nil))
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, append(created, "l-slow")...)
		s.Expect(journal.Of("l-never")).To(BeEmpty())
		s.Expect(journal.Count("l-evicted", "started")).To(Equal(journal.Count("l-evicted", "ended")), "it is evicted, also before it has started")
		s.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(evicted), evicted)).To(Satisfy(apierrors.IsNotFound))
		s.expectNoKubelet(journal)
	})

	t.Run("S17: uses the configuration that the label of the Node selects", func(t *testing.T) {
		s := root.sub(t)
		s.configureMore(map[string]string{
			"config.yaml":  "{shutdownGracePeriod: 4s, shutdownGracePeriodCriticalPods: 1s}",
			"patient.yaml": "{shutdownGracePeriod: 600s, shutdownGracePeriodCriticalPods: 20s}",
		})
		node := s.node(realnode.Options{Name: "patient", Labels: map[string]string{v1alpha1.ShutdownConfigLabel: "patient"}})
		s.awaitConfiguration("patient", "patient")
		s.run(node, realnode.NewPod("p-slow", "15s", realnode.Grace(60)))
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "p-slow")
		ended, _ := journal.First("p-slow", "ended")
		for _, lock := range []string{"node-agent", "node-agent-lock"} {
			released, _ := journal.First(spec.Who, spec.LockReleased+lock)
			s.Expect(ended.Before(released)).To(BeTrue(), "lock %s was released before the Pod had terminated", lock)
		}
	})

	t.Run("S64, S65: the agent runs preStop hooks of every kind, and terminates sidecars last, in the reverse order of their start", func(t *testing.T) {
		s := root.sub(t)
		s.configure("{shutdownGracePeriod: 600s, shutdownGracePeriodCriticalPods: 20s}")
		node := s.node(realnode.Options{Name: "hooks"})
		port, release, err := controlplane.ReservePort()
		s.Expect(err).NotTo(HaveOccurred())
		defer release()
		hooks := map[string][]func(*corev1.Pod){
			"h-exec": {realnode.PreStop(corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/guest", "app", "note", "preStop"}}})},
			"h-http": {realnode.PreStop(corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port)}}),
				realnode.Env("HOOK_PORT", strconv.Itoa(port))},
			"h-sleep": {realnode.PreStop(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10}})},
			"h-main":  {realnode.Sidecars("h-first", "h-second")},
		}
		for name, changes := range hooks {
			s.create(s.workload.Client, tolerateAll(daemonSet(name, node.Name(), append(changes, realnode.Grace(60))...)))
		}
		for _, name := range []string{"h-exec", "h-http", "h-sleep", "h-main", "h-first", "h-second"} {
			s.awaitStarted(node, name, 1)
		}
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.Expect(journal.Of(spec.Who)).To(ContainElement("stopped "+spec.Kubelet), "the agent must terminate the Pods, not the kubelet")
		for _, name := range []string{"h-exec", "h-http"} {
			s.Expect(journal.Of(name)).To(Equal([]string{"started", "preStop", "SIGTERM", "ended"}), name)
		}
		began, _ := journal.First("h-exec", "preStop")
		slept, _ := journal.First("h-sleep", "SIGTERM")
		s.Expect(slept.Sub(began)).To(BeNumerically(">", 3*time.Second), "h-sleep has the same priority as h-exec, and begins at about the same time")
		s.expectGraceful(journal, "h-sleep", "h-main", "h-first", "h-second")
		s.expectOrder(journal, []string{"h-main"}, []string{"h-second"})
		s.expectOrder(journal, []string{"h-second"}, []string{"h-first"})
	})

	root.configure("{shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s}")

	t.Run("S60: the agent finds CRI-O, and terminates the Pods that remain through it", func(t *testing.T) {
		if !realnode.HasCRIO() {
			t.Skip("SKIPPED: this machine has no CRI-O (crio, conmon and pinns)")
		}
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "crio", CRIO: true})
		s.Expect(s.agentCondition(s, "crio").Status).To(Equal(corev1.ConditionTrue))
		s.run(node, realnode.NewPod("q-regular", "1s"))
		s.create(s.workload.Client,
			tolerateAll(daemonSet("q-logs", node.Name(), realnode.Grace(60), realnode.Sidecars("q-sidecar"), realnode.PreStop(corev1.LifecycleHandler{
				Exec: &corev1.ExecAction{Command: []string{"/guest", "app", "note", "preStop"}},
			}))),
			tolerateAll(daemonSet("q-cni", node.Name(), realnode.Grace(60), realnode.In("kube-system"), realnode.Class("system-node-critical"))))
		for _, name := range []string{"q-logs", "q-sidecar", "q-cni"} {
			s.awaitStarted(node, name, 1)
		}
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "q-regular", "q-logs", "q-sidecar", "q-cni")
		s.Expect(journal.Of("q-logs")).To(Equal([]string{"started", "preStop", "SIGTERM", "ended"}))
		s.expectOrder(journal, []string{"q-regular"}, []string{"q-logs"})
		s.expectOrder(journal, []string{"q-logs"}, []string{"q-sidecar"})
		s.expectOrder(journal, []string{"q-logs"}, []string{"q-cni"})
		s.expectNoKubelet(journal)
	})

	t.Run("S4: the NodeMaintenance outlives the boot until a user completes it", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "booted"})
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectPoweredOff(node)
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.awaitAgent(node)
		m := s.maintenance(s, "shutdown-booted")
		s.Expect(m.Spec.Stage).To(Equal(v1alpha1.StageDrain))
		s.Expect(s.unschedulable("booted")).To(BeTrue(), "the Node must stay cordoned")
		s.Expect(s.excluded("booted")).To(BeTrue(), "S16: the Node must stay excluded from load balancers")
		before := m.DeepCopy()
		m.Spec.Stage = v1alpha1.StageComplete
		s.Expect(s.workload.Client.Patch(s.Context(), m, client.MergeFrom(before))).To(Succeed())
		s.Eventually(func() bool { return s.unschedulable("booted") }, eventually, pace).Should(BeFalse())
		s.Eventually(func() bool { return s.excluded("booted") }, eventually, pace).Should(BeFalse())
	})

	t.Run("S3: completes the NodeMaintenance and takes the lock again when the shutdown is cancelled", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "cancelled"})
		s.run(node, realnode.NewPod("o-slow", "10s"))
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("o-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.Expect(node.CancelShutdown()).To(Succeed())
		s.Eventually(func(g Gomega) {
			g.Expect(s.maintenance(g, "shutdown-cancelled").Spec.Stage).To(Equal(v1alpha1.StageComplete))
			g.Expect(node.Locks()).To(Equal([]string{"node-agent", "node-agent-lock"}))
		}, eventually, pace).Should(Succeed())
		s.Eventually(func() bool { return s.unschedulable("cancelled") }, eventually, pace).Should(BeFalse())
		s.Expect(node.Off()).To(BeFalse())
	})

	t.Run("S63: a period of 0 opts the Nodes of a pool out: the agent holds no lock, and the Node powers off at once", func(t *testing.T) {
		s := root.sub(t)
		s.configureMore(map[string]string{"config.yaml": "{shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s}", "off.yaml": "shutdownGracePeriod: 0s"})
		node := s.node(realnode.Options{Name: "off"})
		s.selectConfiguration("off", `"off"`)
		s.Eventually(node.Locks, eventually, pace).Should(BeEmpty())
		s.awaitReason("off", v1alpha1.ReasonShutdownDelayDisabled)
		s.selectConfiguration("off", "null")
		s.awaitAgent(node)
		s.selectConfiguration("off", `"off"`)
		s.Eventually(node.Locks, eventually, pace).Should(BeEmpty())
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectPoweredOff(node)
		s.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "shutdown-off"}, &v1alpha1.NodeMaintenance{})).To(Satisfy(apierrors.IsNotFound))
	})

	t.Run("S62: reports a kubelet in another unit, and terminates the Pods that remain once, instead of until the deadline", func(t *testing.T) {
		s := root.sub(t)
		s.configure("{shutdownGracePeriod: 600s, shutdownGracePeriodCriticalPods: 20s}")
		defer s.configure("{shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s}")
		node := s.node(realnode.Options{Name: "unit", KubeletUnit: "k3s-agent.service"})
		s.awaitReason("unit", v1alpha1.ReasonKubeletCannotBeStopped)
		s.Expect(s.agentCondition(s, "unit").Status).To(Equal(corev1.ConditionFalse))
		s.create(s.workload.Client, tolerateAll(daemonSet("y-logs", node.Name())))
		s.awaitStarted(node, "y-logs", 1)
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), "y-logs") // in less than the ten minutes until the deadline
	})

	t.Run("S7: where the kubelet's graceful shutdown is enabled, the agent reports it and only creates a NodeMaintenance", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "kubelet", ShutdownGracePeriod: 20 * time.Second, ShutdownGracePeriodCriticalPods: 5 * time.Second})
		s.run(node, realnode.NewPod("u-regular", "2s"))
		s.awaitReason("kubelet", v1alpha1.ReasonKubeletGracefulShutdown)
		s.Eventually(func(g Gomega) {
			events := &corev1.EventList{}
			g.Expect(s.workload.Client.List(s.Context(), events, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", v1alpha1.ReasonKubeletGracefulShutdown), HaveField("InvolvedObject.Name", "kubelet"))))
		}, eventually, pace).Should(Succeed())
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "u-regular")
		s.Expect(s.maintenance(s, "shutdown-kubelet").Spec.Stage).To(Equal(v1alpha1.StageDrain))
		s.Expect(journal.Of(spec.Who)).NotTo(ContainElement("stopped " + spec.Kubelet))
	})

	t.Run("S2, S6: where logind allows less time than configured, the agent reports it and releases the lock before logind's deadline", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "short", InhibitDelayMax: 10 * time.Second})
		s.awaitReason("short", v1alpha1.ReasonDelayTooShort)
		s.run(node, realnode.NewPod("s-stuck", "forever", realnode.Grace(600)), realnode.NewPod("s-quick", "500ms"))
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), "s-quick")
	})

	t.Run("S68, S70: the drain continues after the boot, evicts a Pod that the agent has terminated, and ends when the Node is deleted", func(t *testing.T) {
		s := root.sub(t)
		s.configureMore(map[string]string{
			"config.yaml": "{shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s}",
			"quick.yaml":  "{shutdownGracePeriod: 20s, shutdownGracePeriodCriticalPods: 5s}",
		})
		node := s.node(realnode.Options{Name: "continues", Labels: map[string]string{v1alpha1.ShutdownConfigLabel: "quick"}})
		s.awaitConfiguration("continues", "quick")
		pod := realnode.NewPod("v-budget", "500ms", func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "v-budget"} })
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		budget.Spec.MinAvailable, budget.Spec.Selector = ptr.To(intstr.FromInt32(1)), &metav1.LabelSelector{MatchLabels: pod.Labels}
		s.create(s.workload.Client, budget)
		s.run(node, pod)
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), pod.Name)
		s.awaitPod(pod.Name) // nothing reports that it has ended
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.awaitStarted(node, pod.Name, 2)
		s.Expect(s.unschedulable("continues")).To(BeTrue(), "the Node must stay cordoned")
		s.Expect(s.workload.Client.Delete(s.Context(), budget)).To(Succeed())
		s.Eventually(func() error { return s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(pod), pod) }, eventually, pace).
			Should(Satisfy(apierrors.IsNotFound))
		s.Expect(node.Journal().Of(pod.Name)).To(Equal([]string{"started", "SIGTERM", "ended", "started", "SIGTERM", "ended"}))

		of := s.maintenance(s, "shutdown-continues").Annotations[v1alpha1.NodeUIDAnnotation]
		s.Expect(of).To(BeEquivalentTo(s.nodeObject("continues").UID))
		s.Expect(node.StopKubelet()).To(Succeed())
		s.Expect(s.workload.Client.Delete(s.Context(), s.nodeObject("continues"))).To(Succeed())
		s.Eventually(func() error {
			return s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "shutdown-continues"}, &v1alpha1.NodeMaintenance{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		s.Expect(node.StartKubelet()).To(Succeed()) // it registers the Node again
		s.awaitAgent(node)
		s.Expect(s.nodeObject("continues").UID).NotTo(BeEquivalentTo(of))
		s.Expect(s.unschedulable("continues")).To(BeFalse(), "the shutdown of the earlier Node must not cordon this one")
		s.Expect(s.excluded("continues")).To(BeFalse())
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectPoweredOff(node)
		s.Expect(s.maintenance(s, "shutdown-continues").Annotations[v1alpha1.NodeUIDAnnotation]).To(BeEquivalentTo(s.nodeObject("continues").UID))
	})

	t.Run("S2, S4: writes a drop-in for logind while configured, and completes the NodeMaintenance after the boot with completeOnBoot", func(t *testing.T) {
		s := root.sub(t)
		const config = "shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s, completeOnBoot: true"
		s.configureMore(map[string]string{"config.yaml": "{" + config + "}", "raised.yaml": "{" + config + ", logindDropInDir: " + spec.LogindDropIns + "}"})
		node := s.node(realnode.Options{
			Name: "allowed", InhibitDelayMax: 10 * time.Second, Labels: map[string]string{v1alpha1.ShutdownConfigLabel: "raised"},
		})
		s.awaitReason("allowed", v1alpha1.ReasonShutdownDelayed)
		s.Expect(node.ReadFile(spec.LogindDropIns + "/90-node-maintenance.conf")).To(ContainSubstring("InhibitDelayMaxSec=61"))
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectPoweredOff(node)
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.Eventually(func() v1alpha1.NodeMaintenanceStage { return s.maintenance(s, "shutdown-allowed").Spec.Stage }, eventually, pace).
			Should(Equal(v1alpha1.StageComplete))
		s.Eventually(func() bool { return s.unschedulable("allowed") }, eventually, pace).Should(BeFalse())

		s.selectConfiguration("allowed", "null")
		s.awaitReason("allowed", v1alpha1.ReasonDelayTooShort)
		_, err := node.ReadFile(spec.LogindDropIns + "/90-node-maintenance.conf")
		s.Expect(err).To(HaveOccurred(), "the agent must remove its drop-in")
	})

	t.Run("S90: the drop-in for logind stays while the agent restarts and while a Pod replaces it, and is removed with the agent", func(t *testing.T) {
		s := root.sub(t)
		s.configureMore(map[string]string{
			"config.yaml": "{shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s}",
			"raised.yaml": "{shutdownGracePeriod: 60s, shutdownGracePeriodCriticalPods: 20s, logindDropInDir: " + spec.LogindDropIns + "}",
		})
		node := s.node(realnode.Options{
			Name: "removed", InhibitDelayMax: 10 * time.Second, Labels: map[string]string{v1alpha1.ShutdownConfigLabel: "raised"},
		})
		dropIn := func() error {
			_, err := node.ReadFile(spec.LogindDropIns + "/90-node-maintenance.conf")
			return err
		}
		lowered := func() int { return node.Journal().Count(spec.Who, spec.Allows+"10s") }
		s.Eventually(dropIn, eventually, pace).Should(Succeed())

		released := func() int { return node.Journal().Count(spec.Who, spec.LockReleased+"node-agent") }
		before := released()
		s.Expect(node.Terminate("/node-agent", "--v=2")).To(Succeed())
		s.Eventually(released, eventually, pace).Should(BeNumerically(">", before))
		s.Eventually(node.Locks, eventually, pace).Should(Equal([]string{"node-agent", "node-agent-lock"}))
		s.Expect(lowered()).To(BeZero(), "logind must allow the longer delay while the agent's container restarts")
		s.Expect(dropIn()).To(Succeed())

		s.replaceAgent(node)
		s.Expect(lowered()).To(BeZero(), "logind must allow the longer delay while another Pod replaces that of the agent")
		s.Expect(dropIn()).To(Succeed())

		s.setNodeAgent(v1alpha1.NodeAgentDisabled)
		s.Eventually(node.Locks, eventually, pace).Should(BeEmpty())
		s.Eventually(dropIn, eventually, pace).ShouldNot(Succeed())
		s.Eventually(lowered, eventually, pace).Should(Equal(1))
		s.Eventually(func() error {
			return s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: agentNamespace, Name: agentName}, &appsv1.DaemonSet{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		s.setNodeAgent(v1alpha1.NodeAgentEnabled)
		s.reachAPIServer()
	})

	// From here on the manager loses its connection, too, and reconnects after some time.
}
