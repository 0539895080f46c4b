package realnode_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode"
	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

func TestRealNode(t *testing.T) {
	t.Parallel()
	realnode.Skip(t)
	g, ctx := NewWithT(t), t.Context()
	g.SetDefaultEventuallyTimeout(2 * time.Minute)
	cluster := controlplane.ForTest(t, controlplane.Options{Name: "workload", Scheduler: true})
	c, err := client.New(cluster.AdminConfig(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	node := realnode.ForTest(t, cluster, realnode.Options{Name: "n1"})

	for _, pod := range []*corev1.Pod{realnode.NewPod("quick", "100ms"), realnode.NewPod("stuck", "forever", realnode.Grace(2))} {
		g.Expect(c.Create(ctx, pod)).To(Succeed())
		g.Eventually(func() int { return node.Journal().Count(pod.Name, "started") }).Should(Equal(1))
	}

	t.Run("a deleted Pod receives SIGTERM, and SIGKILL after its grace period", func(t *testing.T) {
		g := NewWithT(t)
		g.SetDefaultEventuallyTimeout(2 * time.Minute)
		for _, name := range []string{"quick", "stuck"} {
			pod := realnode.NewPod(name, "")
			g.Expect(c.Delete(ctx, pod)).To(Succeed())
		}
		g.Eventually(func() []string { return node.Journal().Of("quick") }).Should(Equal([]string{"started", "SIGTERM", "ended"}))
		g.Eventually(func() []string { return node.Journal().Of("stuck") }).Should(Equal([]string{"started", "SIGTERM"}))
	})

	t.Run("without locks, the node powers off at once, and keeps its disk", func(t *testing.T) {
		g := NewWithT(t)
		g.SetDefaultEventuallyTimeout(2 * time.Minute)
		g.Expect(node.WriteStaticPod(realnode.NewPod("static", "100ms"))).To(Succeed())
		g.Eventually(func() int { return node.Journal().Count("static", "started") }).Should(Equal(1))
		g.Expect(node.PowerButton()).To(Succeed())
		g.Eventually(node.Off).Should(BeTrue())
		g.Expect(node.Journal().Of(spec.Who)).To(Equal([]string{spec.Booted, spec.Preparing, spec.PowerOff}))
		g.Expect(node.Boot(ctx)).To(Succeed())
		g.Eventually(func() int { return node.Journal().Count("static", "started") }).Should(Equal(2))
	})
}
