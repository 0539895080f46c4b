package realnode_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

func TestStaticPods(t *testing.T) {
	root := newScene(t)
	node := root.node(realnode.Options{Name: "n1"})
	for _, pod := range []*corev1.Pod{realnode.NewPod("web", "1s"), realnode.NewPod("etcd", "1s", realnode.In("kube-system"))} {
		root.Expect(node.WriteStaticPod(pod)).To(Succeed())
		root.awaitStarted(node, pod.Name, 1)
	}
	held := filepath.Join(filepath.Dir(node.Manifest("web")), ".held-by-node-maintenance", "web.yaml")
	written, err := os.ReadFile(node.Disk(node.Manifest("web")))
	root.Expect(err).NotTo(HaveOccurred())
	started := 1 // how often the kubelet has started web so far

	maintenance := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "kernel"}}
	maintenance.Spec = v1alpha1.NodeMaintenanceSpec{
		Stage: v1alpha1.StageDrain, Reason: "new kernel", DrainRules: []v1alpha1.DrainRule{rules.SkipNodeAgent()},
		NodeSelector: v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{
			MatchFields: []v1alpha1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}},
		}}},
	}

	t.Run("S8, S9: a maintenance terminates the static Pod gracefully, after all other Pods", func(t *testing.T) {
		s := root.sub(t)
		s.run(node, realnode.NewPod("other", "2s"))
		s.create(s.workload.Client, maintenance.DeepCopy())
		s.awaitDrained("kernel")
		s.Expect(node.Journal().Of("web")).To(Equal([]string{"started", "SIGTERM", "ended"}))
		s.expectOrder(node.Journal(), []string{"other"}, []string{"web"})
		s.Expect(os.ReadFile(node.Disk(held))).To(Equal(written))
		s.Expect(s.mirror("web-n1")).To(Satisfy(apierrors.IsNotFound))
	})

	t.Run("S11: the static Pods of a control plane keep running", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(node.Journal().Of("etcd")).To(Equal([]string{"started"}))
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
		s.Expect(s.unschedulable("n1")).To(BeFalse())
	})

	t.Run("S10: the static Pod runs after a boot that follows the maintenance", func(t *testing.T) {
		s := root.sub(t)
		node.CutPower()
		s.Expect(node.Boot(s.Context())).To(Succeed())
		s.awaitStarted(node, "web", started+2)
	})

	t.Run("S14: both containers together take less than 30 MB", func(t *testing.T) {
		s := root.sub(t)
		s.awaitAgent(node)
		var memory int64
		pids := append(node.Processes("/node-agent", "--v=2"), node.Processes("/node-agent", "lock")...)
		s.Expect(pids).To(HaveLen(2))
		for _, pid := range pids {
			usage, err := realnode.UsageOf(pid)
			s.Expect(err).NotTo(HaveOccurred())
			t.Logf("%d: %d KB, %d ticks", pid, usage.Memory>>10, usage.CPUTicks)
			memory += usage.Memory
		}
		s.Expect(memory).To(BeNumerically("<", 30<<20))
	})

	t.Run("S13: without the system bus, the agent reports it and still holds static Pods", func(t *testing.T) {
		s := root.sub(t)
		s.Expect(node.StopDBus()).To(Succeed())
		s.Eventually(func() string { return s.agentCondition(s, "n1").Reason }, eventually, pace).Should(Equal(v1alpha1.ReasonNoSystemBus))
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
		s.Expect(os.ReadFile(node.Disk(held + ".replaced"))).To(Equal(written))
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
