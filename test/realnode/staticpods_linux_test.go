package realnode_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

func TestStaticPods(t *testing.T) {
	t.Parallel()
	root := newScene(t)
	node := root.node(realnode.Options{Name: "n1"})
	controlPlane := map[string]string{"tier": "control-plane"}
	labelled := func(pod *corev1.Pod) { pod.Labels = controlPlane }
	for _, pod := range []*corev1.Pod{realnode.NewPod("web", "1s"), realnode.NewPod("etcd", "1s", realnode.In("kube-system"), labelled)} {
		root.Expect(node.WriteStaticPod(pod)).To(Succeed())
		root.awaitStarted(node, pod.Name, 1)
	}
	held := filepath.Join(filepath.Dir(node.Manifest("web")), ".held-by-node-maintenance", "web.yaml")
	written, err := os.ReadFile(node.Disk(node.Manifest("web")))
	root.Expect(err).NotTo(HaveOccurred())
	started := 1 // how often the kubelet has started web so far

	byName := func(node string) v1alpha1.NodeSelectorTerm {
		return v1alpha1.NodeSelectorTerm{
			MatchFields: []v1alpha1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}
	}
	maintenance := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "kernel"}}
	maintenance.Spec = v1alpha1.NodeMaintenanceSpec{
		Stage: v1alpha1.StageDrain, Reason: "new kernel", DrainRules: []v1alpha1.DrainRule{rules.SkipNodeAgent()},
		NodeSelector: v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{byName("n1")}},
	}
	// The drain of the other Node, which "kernel" drains, too, has a rule that names the Pods of a control plane.
	elsewhere, other := controlplane.NewIdleNode("elsewhere"), maintenance.DeepCopy()
	other.Name, other.Spec.NodeSelector.NodeSelectorTerms = "elsewhere", []v1alpha1.NodeSelectorTerm{byName("elsewhere")}
	other.Spec.DrainRules = append(other.Spec.DrainRules, v1alpha1.DrainRule{
		Name: "control-plane", Behavior: v1alpha1.DrainBehaviorDrain,
		Pods: []v1alpha1.DrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: controlPlane}}},
	})

	t.Run("S8, S9: a maintenance terminates the static Pod gracefully, after all other Pods, and the agent reports why", func(t *testing.T) {
		s := root.sub(t)
		begin, err := s.workload.Audit().Mark()
		s.Expect(err).NotTo(HaveOccurred())
		s.run(node, realnode.NewPod("other", "2s"))
		s.create(s.workload.Client, elsewhere, other)
		s.awaitDrained(other.Name)
		kernel := maintenance.DeepCopy()
		kernel.Spec.NodeSelector.NodeSelectorTerms = append(kernel.Spec.NodeSelector.NodeSelectorTerms, byName(elsewhere.Name))
		s.create(s.workload.Client, kernel)
		s.awaitDrained("kernel")
		s.Expect(node.Journal().Of("web")).To(Equal([]string{"started", "SIGTERM", "ended"}))
		s.expectOrder(node.Journal(), []string{"other"}, []string{"web"})
		s.Expect(os.ReadFile(node.Disk(held))).To(Equal(written))
		s.Expect(s.mirror("web-n1")).To(Satisfy(apierrors.IsNotFound))
		events, err := s.workload.Audit().Since(begin)
		s.Expect(err).NotTo(HaveOccurred())
		reports := events.WithUserAgent("capnm-node-agent").Verb("patch").Resource("evacuations", "status").Succeeded()
		s.Expect(reports).To(HaveLen(1))
		s.Expect(string(reports[0].RequestObject)).To(ContainSubstring("NodeMaintenance kernel drains Node n1 (new kernel). The kubelet terminates the static Pod"))
	})

	t.Run("S11: the static Pods of a control plane keep running, also while a drain of another Node has a rule that names them", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(node.Journal().Of("etcd")).To(Equal([]string{"started"}))
		s.Expect(s.workload.Client.Delete(s.Context(), other)).To(Succeed())
		s.Expect(s.workload.Client.Delete(s.Context(), elsewhere)).To(Succeed())
	})

	t.Run("S10: the manifest stays held when the agent, the kubelet and the node restart", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(node.Kill("/node-agent", "--v=2")).To(Succeed())
		s.Expect(node.StopKubelet()).To(Succeed())
		s.Expect(node.StartKubelet()).To(Succeed())
		node.CutPower()
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.awaitAgent(node)
		s.awaitStarted(node, "etcd", 2)
		s.Expect(node.Journal().Count("web", "started")).To(Equal(started))
		s.Expect(os.ReadFile(node.Disk(held))).To(Equal(written))
	})

	t.Run("S10: the agent finishes a move of the manifest that a power cut has interrupted", func(t *testing.T) {
		s := root.sub(t)
		node.CutPower()
		s.Expect(os.Rename(node.Disk(held), node.Disk(node.Manifest("web")))).To(Succeed())
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.awaitAgent(node)
		s.Eventually(func(g Gomega) {
			g.Expect(os.ReadFile(node.Disk(held))).To(Equal(written))
			g.Expect(node.Disk(node.Manifest("web"))).NotTo(BeAnExistingFile())
			// The kubelet deletes the mirror Pod when the Pod has terminated. The journal does not show it if SIGTERM arrives before the
			// process has started.
			g.Expect(s.mirror("web-n1")).To(Satisfy(apierrors.IsNotFound))
		}, eventually, pace).Should(Succeed())
		started = node.Journal().Count("web", "started")
	})

	t.Run("S10: completion restores the manifest unchanged, and the static Pod runs", func(t *testing.T) {
		s := root.sub(t)
		m := s.maintenance(s, "kernel")
		before := m.DeepCopy()
		m.Spec.Stage = v1alpha1.StageComplete
		s.Expect(s.workload.Client.Patch(s.Context(), m, client.MergeFrom(before))).To(Succeed())
		s.awaitStarted(node, "web", started+1)
		s.Expect(os.ReadFile(node.Disk(node.Manifest("web")))).To(Equal(written))
		s.Expect(node.Disk(held)).NotTo(BeAnExistingFile())
		s.Eventually(func(g Gomega) {
			now := &corev1.Node{}
			g.Expect(s.workload.Client.Get(s.Context(), types.NamespacedName{Name: "n1"}, now)).To(Succeed())
			g.Expect(now.Spec.Unschedulable).To(BeFalse())
			g.Expect(now.Annotations).NotTo(Or(HaveKey(v1alpha1.StaticPodTargetsAnnotation), HaveKey(v1alpha1.StaticPodCauseAnnotation)))
		}, eventually, pace).Should(Succeed())
	})

	t.Run("S10: the static Pod runs after a boot that follows the maintenance", func(t *testing.T) {
		s := root.sub(t)
		node.CutPower()
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.awaitStarted(node, "web", started+2)
	})

	t.Run("E29, R40: both Pods of a DaemonSet that surges terminate, and one starts after the maintenance", func(t *testing.T) {
		s := root.sub(t)
		zero, one := intstr.FromInt32(0), intstr.FromInt32(1)
		surging := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "surging"}}
		surging.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "surging"}}
		surging.Spec.Template = corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: surging.Spec.Selector.MatchLabels}, Spec: realnode.NewPod("surging", "1s").Spec,
		}
		surging.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
			Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &zero, MaxSurge: &one},
		}
		s.create(s.workload.Client, surging)
		s.awaitStarted(node, "surging", 1)
		patch := client.MergeFrom(surging.DeepCopy())
		surging.Spec.MinReadySeconds = 3600 // the rollout stays in progress
		surging.Spec.Template.Annotations = map[string]string{"revision": "2"}
		s.Expect(s.workload.Client.Patch(s.Context(), surging, patch)).To(Succeed())
		s.awaitStarted(node, "surging", 2)
		s.Expect(node.Journal().Count("surging", "ended")).To(BeZero())

		m := maintenance.DeepCopy()
		m.Name = "surging"
		m.Spec.DrainRules = append(m.Spec.DrainRules, v1alpha1.DrainRule{
			Name: "static-pods", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{{PodType: v1alpha1.PodTypeStatic}},
		})
		s.create(s.workload.Client, m)
		s.awaitDrained(m.Name)
		journal := node.Journal()
		s.Expect([]int{journal.Count("surging", "SIGTERM"), journal.Count("surging", "ended"), journal.Count("surging", "started")}).To(Equal([]int{2, 2, 2}))

		patch = client.MergeFrom(m.DeepCopy())
		m.Spec.Stage = v1alpha1.StageComplete
		s.Expect(s.workload.Client.Patch(s.Context(), m, patch)).To(Succeed())
		s.awaitStarted(node, "surging", 3)
		s.Eventually(func(g Gomega) {
			g.Expect(s.workload.Client.Get(s.Context(), client.ObjectKeyFromObject(surging), surging)).To(Succeed())
			g.Expect(surging.Status.ObservedGeneration).To(Equal(surging.Generation))
			g.Expect([]int32{surging.Status.CurrentNumberScheduled, surging.Status.UpdatedNumberScheduled, surging.Status.NumberReady}).To(HaveEach(BeEquivalentTo(1)))
		}, eventually, pace).Should(Succeed())
		s.Expect(node.Journal().Count("surging", "started")).To(Equal(3), "the DaemonSet controller has settled")
	})

	t.Run("S14: idle, both containers together take less than 30 MB and a hundredth of a CPU, and send no requests to the API server", func(t *testing.T) {
		s := root.sub(t)
		s.awaitAgent(node)
		pids := append(node.Processes("/node-agent", "--v=2"), node.Processes("/node-agent", "lock")...)
		s.Expect(pids).To(HaveLen(2))
		used := func() (total realnode.Usage) {
			for _, pid := range pids {
				usage, err := realnode.UsageOf(pid)
				s.Expect(err).NotTo(HaveOccurred())
				total.Memory, total.CPUTicks = total.Memory+usage.Memory, total.CPUTicks+usage.CPUTicks
			}
			return total
		}
		isRequest := func(e controlplane.Event) bool { return e.Verb != "watch" } // which may be renewed
		var begin controlplane.Mark
		s.Eventually(func() controlplane.Events { // the agent may still report the end of the previous maintenance
			events, next, err := s.workload.Audit().Next(begin)
			s.Expect(err).NotTo(HaveOccurred())
			begin = next
			return events.WithUserAgent("capnm-node-agent").Where(isRequest)
		}, eventually, 5*time.Second).Should(BeEmpty())
		before := used().CPUTicks
		s.Consistently(func() int64 { return used().CPUTicks - before }, 30*time.Second, time.Second).Should(BeNumerically("<", 30))
		after := used()
		t.Logf("%d KB, %d ticks in 30 s", after.Memory>>10, after.CPUTicks-before)
		s.Expect(after.Memory).To(BeNumerically("<", 30<<20))
		events, err := s.workload.Audit().Since(begin)
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(events.WithUserAgent("capnm-node-agent").Where(isRequest)).To(BeEmpty())
		events, err = s.workload.Audit().Since(controlplane.Mark{})
		s.Expect(err).NotTo(HaveOccurred())
		watches := events.WithUserAgent("capnm-node-agent").Verb("watch")
		s.Expect(watches.Resource("nodes", "")).To(And(Not(BeEmpty()), HaveEach(HaveField("URI", ContainSubstring("metadata.name%3Dn1")))))
		s.Expect(watches.Resource("evacuations", "")).To(And(Not(BeEmpty()), HaveEach(HaveField("URI", ContainSubstring("labelSelector=")))))
		s.Expect(watches).To(HaveEach(HaveField("Resource", BeElementOf("nodes", "evacuations"))))
	})

	t.Run("S13: the processes of the agent have no capabilities, cannot gain any, and cannot write to their root file system", func(t *testing.T) {
		s := root.sub(t)
		for _, pid := range append(node.Processes("/node-agent", "--v=2"), node.Processes("/node-agent", "lock")...) {
			for file, expected := range map[string][]string{
				"status":    {`CapPrm:\s0+\n`, `CapEff:\s0+\n`, `CapBnd:\s0+\n`, `CapAmb:\s0+\n`, `NoNewPrivs:\s1\n`},
				"mountinfo": {`(?m)^\S+ \S+ \S+ \S+ / ro,`},
			} {
				content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + file)
				s.Expect(err).NotTo(HaveOccurred())
				for _, pattern := range expected {
					s.Expect(string(content)).To(MatchRegexp(pattern))
				}
			}
		}
	})

	t.Run("S91: the processes of the agent run with the seccomp profile of the container runtime", func(t *testing.T) {
		s := root.sub(t)
		if realnode.RuncWithSeccomp() == "" {
			t.Skip("SKIPPED: this machine has no runc with seccomp (package runc)")
		}
		for _, pid := range append(node.Processes("/node-agent", "--v=2"), node.Processes("/node-agent", "lock")...) {
			status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(string(status)).To(MatchRegexp(`Seccomp:\s2\n`))
		}
	})

	t.Run("S93: another user who listens in the place of a kubelet that does not run does not receive the token of the agent", func(t *testing.T) {
		s := root.sub(t)
		s.awaitAgent(node)
		port := s.nodeObject("n1").Status.DaemonEndpoints.KubeletEndpoint.Port
		s.run(node, realnode.NewPod("unknown", "100ms")) // an agent that does not know a Pod yet asks the kubelet within seconds, not minutes
		s.Expect(node.StopKubelet()).To(Succeed())
		received := s.listenAs(65534, port)
		for range 2 { // the configuration and the Pods
			s.Eventually(received, eventually, pace).Should(Receive(BeEmpty()))
		}
		s.Expect(node.StartKubelet()).To(Succeed())
	})

	t.Run("S13: without the system bus, the agent reports it and still holds static Pods", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(node.StopDBus()).To(Succeed())
		s.Eventually(func() string { return s.agentCondition(s, "n1").Reason }, eventually, pace).Should(Equal(v1alpha1.ReasonShutdownNotDelayed))
		second := maintenance.DeepCopy()
		second.Name = "without-bus"
		s.create(s.workload.Client, second)
		s.awaitDrained("without-bus")
		s.Expect(node.Disk(held)).To(BeAnExistingFile())
		journal := node.Journal()
		s.Expect(journal.Count("web", "ended")).To(BeNumerically(">=", 1))
		s.Expect(journal.Of(spec.Who)).NotTo(ContainElement(spec.Preparing))
	})

	t.Run("S10: a manifest that is recreated during the maintenance is reported, and stays", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(node.WriteStaticPod(realnode.NewPod("web", "2s"))).To(Succeed())
		recreated, err := os.ReadFile(node.Disk(node.Manifest("web")))
		s.Expect(err).NotTo(HaveOccurred())
		s.awaitEvent("StaticPodReappeared")
		m := s.maintenance(s, "without-bus")
		before := m.DeepCopy()
		m.Spec.Stage = v1alpha1.StageComplete
		s.Expect(s.workload.Client.Patch(s.Context(), m, client.MergeFrom(before))).To(Succeed())
		s.awaitEvent("StaticPodReplaced")
		s.Expect(os.ReadFile(node.Disk(node.Manifest("web")))).To(Equal(recreated))
		s.Expect(os.ReadFile(node.Disk(filepath.Join(filepath.Dir(held), ".web.yaml.replaced")))).To(Equal(written))
	})
}

func (s *scene) awaitEvent(reason string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(s.workload.Client.List(s.Context(), events, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(HaveField("Reason", reason)))
	}, eventually, pace).Should(Succeed())
}

func (s *scene) awaitDrained(name string) {
	s.Helper()
	s.Eventually(func(g Gomega) {
		m := s.maintenance(g, name)
		g.Expect(m.Status.Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.NodeMaintenanceDrained), HaveField("Status", metav1.ConditionTrue))))
	}, eventually, pace).Should(Succeed())
}

// mirror returns the error of getting a mirror Pod.
func (s *scene) mirror(name string) error {
	return s.workload.Client.Get(s.Context(), types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, &corev1.Pod{})
}
