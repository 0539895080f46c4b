package realnode_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// TestShutdownWithFaults tests a shutdown during which a part of the Node, the API server or the management cluster fails.
func TestShutdownWithFaults(t *testing.T) {
	t.Parallel()
	root := newShutdownScene(t)
	t.Run("S3: the second lock delays the shutdown while a killed agent restarts", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "killed"})
		s.run(node, realnode.NewPod("k-slow", spec.UntilReleased, realnode.Grace(600)))
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("k-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		killed := node.Processes("/node-agent", "--v=2")
		s.Expect(node.Kill("/node-agent", "--v=2")).To(Succeed())
		s.Eventually(func() []int { return node.Processes("/node-agent", "--v=2") }, eventually, pace).Should(And(HaveLen(1), Not(Equal(killed))))
		s.Expect(node.Release("k-slow")).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "k-slow")
		s.Expect(journal.Count(spec.Who, spec.LockReleased+"node-agent")).To(Equal(1))
	})

	t.Run("S1: takes the lock again after the bus or logind restarts, and drains the Node if the bus restarts during a shutdown", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "bus"})
		s.run(node, realnode.NewPod("d-slow", "4s"))
		for _, restart := range []func() error{node.RestartDBus, node.RestartLogind} {
			taken := node.Journal().Count(spec.Who, spec.LockTaken+"node-agent")
			s.Expect(restart()).To(Succeed())
			s.Eventually(func(g Gomega) {
				g.Expect(node.Journal().Count(spec.Who, spec.LockTaken+"node-agent")).To(BeNumerically(">", taken))
				g.Expect(node.Locks()).To(Equal([]string{"node-agent", "node-agent-lock"}))
			}, eventually, pace).Should(Succeed())
		}
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("d-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.Expect(node.RestartDBus()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), "d-slow")
	})

	t.Run("S60: reports a runtime that does not answer, also in its readiness, and terminates the Pods that remain after the restart", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "runtime"})
		s.run(node, realnode.NewPod("t-regular", "1s"))
		s.create(s.workload.Client, tolerateAll(daemonSet("t-logs", node.Name(), realnode.Grace(60))))
		s.awaitStarted(node, "t-logs", 1)
		agents := node.Processes("/node-agent", "--v=2")
		s.Expect(agents).To(HaveLen(1))
		show, err := realnode.Hide(agents[0], filepath.Dir(spec.ContainerdSocket)) // from its next connection on
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(node.StopContainerd()).To(Succeed())
		s.awaitReason("runtime", v1alpha1.ReasonContainerRuntimeUnavailable)
		s.Expect(s.agentCondition(s, "runtime").Status).To(Equal(corev1.ConditionFalse))
		s.Expect(node.StartContainerd()).To(Succeed())
		s.awaitReadiness(node, corev1.ConditionFalse) // the kubelet uses the runtime again, and runs the probe, but the agent does not
		s.Expect(s.agentCondition(s, "runtime").Reason).To(Equal(v1alpha1.ReasonContainerRuntimeUnavailable))
		s.Expect(show()).To(Succeed())
		s.awaitReadiness(node, corev1.ConditionTrue)
		s.awaitRuntime(node)
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "t-regular", "t-logs")
	})

	t.Run("S61: a restarted agent completes the NodeMaintenance of a shutdown that was cancelled meanwhile, and delays the next one", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "forgotten"})
		s.run(node, realnode.NewPod("f-first", "10s"))
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("f-first", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.Expect(node.Kill("/node-agent", "--v=2")).To(Succeed())
		s.Expect(node.CancelShutdown()).To(Succeed())
		s.Eventually(func(g Gomega) {
			g.Expect(s.maintenance(g, "shutdown-forgotten").Spec.Stage).To(Equal(v1alpha1.StageComplete))
			g.Expect(node.Locks()).To(Equal([]string{"node-agent", "node-agent-lock"}))
		}, eventually, pace).Should(Succeed())
		s.Eventually(func() bool { return s.unschedulable("forgotten") }, eventually, pace).Should(BeFalse())
		s.run(node, realnode.NewPod("f-second", "3s"))
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), "f-second")
	})

	t.Run("S5, S6: without the API server, the agent terminates the Pods by priority", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "alone"})
		regular, critical := workload("a")
		s.run(node, append(regular, critical...)...)
		s.Expect(node.WriteStaticPod(realnode.NewPod("a-static", "500ms"))).To(Succeed())
		s.awaitStarted(node, "a-static", 1)
		s.awaitKnown(node, append(regular, critical...)...)
		s.workload.CutNetwork()
		defer s.workload.RestoreNetwork()
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, append(names(regular[:6]), names(critical)...)...)
		s.expectGraceful(journal, "a-static")
		s.expectOrder(journal, names(regular[:6]), names(critical))
		s.Expect(journal.Of(spec.Who)).To(ContainElement("stopped "+spec.Kubelet), "a running kubelet restarts Pods that the agent terminates")
	})

	t.Run("S60: terminates the Pods without the API server after the container runtime has restarted", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "restarted"})
		s.run(node, realnode.NewPod("w-regular", "1s"))
		s.Expect(node.StopContainerd()).To(Succeed())
		s.Expect(node.StartContainerd()).To(Succeed())
		s.awaitRuntime(node)
		s.workload.CutNetwork()
		defer s.workload.RestoreNetwork()
		s.Expect(node.PowerButton()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), "w-regular")
	})

	t.Run("S60: stops the kubelet while the container runtime does not answer, and terminates the Pods when it answers again", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "noruntime"})
		s.run(node, realnode.NewPod("z-regular", "1s"))
		s.Expect(node.StopContainerd()).To(Succeed())
		s.workload.CutNetwork()
		defer s.workload.RestoreNetwork()
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() []string { return node.Journal().Of(spec.Who) }, eventually, pace).Should(ContainElement("stopped " + spec.Kubelet))
		s.Expect(node.StartContainerd()).To(Succeed())
		s.expectGraceful(s.expectPoweredOff(node), "z-regular")
	})

	t.Run("S80: the kubelet runs again, and restarts the agent, if a shutdown is cancelled after the agent has stopped it and was killed", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "orphan"})
		pod := realnode.NewPod("x-slow", "20s", realnode.Grace(60))
		s.run(node, pod)
		s.awaitKnown(node, pod)
		s.workload.CutNetwork()
		defer s.workload.RestoreNetwork()
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("x-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.Expect(node.Journal().Of(spec.Who)).To(ContainElement("stopped " + spec.Kubelet))
		s.Expect(node.Kill("/node-agent", "--v=2")).To(Succeed())
		s.Expect(node.CancelShutdown()).To(Succeed())
		s.Eventually(func() []string { return node.Journal().Of(spec.Who) }, eventually, pace).Should(ContainElement("started " + spec.Kubelet))
		s.workload.RestoreNetwork()
		s.Eventually(node.Locks, eventually, pace).Should(Equal([]string{"node-agent", "node-agent-lock"}))
		s.Expect(node.Off()).To(BeFalse())
	})

	t.Run("S88: the second container terminates the Pods that remain when the agent has stopped the kubelet and was killed", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "successor"})
		slow := realnode.NewPod("m-slow", "8s", realnode.Grace(60))
		critical := realnode.NewPod("m-critical", "500ms", realnode.In("kube-system"), realnode.Class("system-cluster-critical"))
		s.run(node, slow, critical)
		s.awaitKnown(node, slow, critical)
		s.workload.CutNetwork()
		defer s.workload.RestoreNetwork()
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("m-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.Expect(node.Kill("/node-agent", "--v=2")).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "m-slow", "m-critical")
		s.expectOrder(journal, []string{"m-slow"}, []string{"m-critical"})
		s.expectNoKubelet(journal)
	})

	t.Run("S5: continues with the NodeMaintenance when the API server answers again", func(t *testing.T) {
		s := root.sub(t)
		node := s.node(realnode.Options{Name: "back"})
		slow := realnode.NewPod("b-slow", spec.UntilReleased, realnode.Grace(600))
		critical := realnode.NewPod("b-critical", "500ms", realnode.In("kube-system"), realnode.Class("system-cluster-critical"))
		s.run(node, slow, critical)
		s.awaitKnown(node, slow, critical)
		s.workload.CutNetwork()
		defer s.workload.RestoreNetwork()
		s.Expect(node.PowerButton()).To(Succeed())
		s.Eventually(func() int { return node.Journal().Count("b-slow", "SIGTERM") }, eventually, pace).Should(Equal(1))
		s.workload.RestoreNetwork()
		s.Eventually(func(g Gomega) {
			g.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(slow), slow)).To(Succeed())
			g.Expect(slow.DeletionTimestamp).NotTo(BeNil())
		}, eventually, pace).Should(Succeed(), "the drain must evict the Pod")
		s.Expect(node.Release("b-slow")).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "b-slow", "b-critical")
		s.expectOrder(journal, []string{"b-slow"}, []string{"b-critical"})
		s.Expect(journal.Of(spec.Who)).To(ContainElement("started "+spec.Kubelet), "the agent must start the kubelet again")
		s.Expect(s.maintenance(s, "shutdown-back").Spec.Stage).To(Equal(v1alpha1.StageDrain))
	})

	t.Run("S5: terminates the Pods when no management cluster acts", func(t *testing.T) {
		s := root.sub(t)
		s.configure("{shutdownGracePeriod: 600s, shutdownGracePeriodCriticalPods: 20s, managementPatience: 5s}")
		node := s.node(realnode.Options{Name: "unmanaged"})
		s.run(node, realnode.NewPod("n-regular", "1s"))
		s.fleet.KillManager()
		s.Expect(node.PowerButton()).To(Succeed())
		journal := s.expectPoweredOff(node)
		s.expectGraceful(journal, "n-regular")
		s.Expect(journal.Of(spec.Who)).To(ContainElement("stopped " + spec.Kubelet))
		s.Expect(s.maintenance(s, "shutdown-unmanaged").Spec.Stage).To(Equal(v1alpha1.StageDrain), "the NodeMaintenance must remain for a manager that starts later")
	})
}
