package realnode_test

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
)

// TestMachineWithRealNode tests the drain of a Machine whose Node has a real kubelet, beside a Machine with one of kwok's Nodes.
func TestMachineWithRealNode(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.configureMore(map[string]string{"gpu.yaml": "{shutdownGracePeriod: 120s, shutdownGracePeriodCriticalPods: 20s}"})
	node := s.node(realnode.Options{Name: "real", ProviderID: kwok.ProviderID("c1", "real")})
	for _, name := range []string{"fake", "real"} {
		s.create(s.fleet.Client, s.cluster.Machine(name, kwok.With(func(m *clusterv1.Machine) { m.Labels[v1alpha1.ShutdownConfigLabel] = "gpu" }))...)
	}
	machine := func(g Gomega, name string) *clusterv1.Machine {
		m := &clusterv1.Machine{}
		g.Expect(s.fleet.Client.Get(s.Context(), types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, m)).To(Succeed())
		return m
	}
	for _, name := range []string{"fake", "real"} {
		s.Eventually(func(g Gomega) {
			g.Expect(machine(g, name).Status.NodeRef.Name).To(Equal(name))
			g.Expect(machine(g, name).Annotations).To(HaveKey(v1alpha1.PreDrainHookAnnotation))
		}, eventually, pace).Should(Succeed())
	}
	s.Expect(node.WriteStaticPod(realnode.NewPod("static", "1s"))).To(Succeed())
	s.awaitStarted(node, "static", 1)
	pods := func(prefix string) []*corev1.Pod {
		return []*corev1.Pod{realnode.NewPod(prefix+"patient", "4s", realnode.Grace(60)), realnode.NewPod(prefix+"stuck", "forever", realnode.Grace(2))}
	}
	s.run(node, pods("kubectl-")...)
	s.kubectlDrain("real")
	s.run(node, pods("")...)
	begin, err := s.workload.Audit().Mark()
	s.Expect(err).NotTo(HaveOccurred())

	t.Run("S17: uses the shutdown configuration that the label of the Machine selects", func(t *testing.T) {
		s.sub(t).awaitConfiguration("real", "gpu")
	})

	t.Run("E1, R41: the drain of a Machine waits for slow Pods to terminate, and never evicts a mirror Pod", func(t *testing.T) {
		s := s.sub(t)
		start := time.Now()
		s.Expect(s.fleet.Client.Delete(s.Context(), machine(s, "real"))).To(Succeed())
		s.Eventually(func() error {
			return s.fleet.Client.Get(s.Context(), types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "real"}, &clusterv1.Machine{})
		}, eventually, pace).Should(Satisfy(apierrors.IsNotFound))
		t.Logf("the Machine was deleted after %s", time.Since(start).Round(100*time.Millisecond))
		journal := node.Journal()
		s.Expect(journal.Of("patient")).To(Equal([]string{"started", "SIGTERM", "ended"}))
		s.Expect(journal.Of("static")).To(Equal([]string{"started"}))
		events, err := s.workload.Audit().Since(begin)
		s.Expect(err).NotTo(HaveOccurred())
		for _, event := range events {
			s.Expect(event.Subresource == "eviction" && event.Name == "static-real").To(BeFalse(), "the mirror Pod was evicted")
		}
		asked, _ := journal.First("patient", "SIGTERM")
		ended, _ := journal.First("patient", "ended")
		s.Expect(ended.Sub(asked)).To(BeNumerically(">=", 4*time.Second), "the Pod had less time than it needs to terminate")
	})
}

// kubectlDrain drains a Node with kubectl, logs the duration for comparison, and uncordons the Node.
func (s *scene) kubectlDrain(node string) {
	s.Helper()
	kubectl, err := controlplane.Tool("kubectl")
	s.Expect(err).NotTo(HaveOccurred())
	run := func(args ...string) {
		args = append(args, "--kubeconfig="+filepath.Join(s.workload.Dir(), "admin.kubeconfig"))
		output, err := exec.CommandContext(s.Context(), kubectl, args...).CombinedOutput()
		s.Expect(err).NotTo(HaveOccurred(), string(output))
	}
	start := time.Now()
	run("drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data")
	s.Logf("kubectl drain took %s", time.Since(start).Round(100*time.Millisecond))
	run("uncordon", node)
}
