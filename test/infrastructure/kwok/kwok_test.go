package kwok_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

const (
	soon = 3 * time.Minute
	// aWhile is long enough for a running kubelet to act.
	aWhile = 2 * time.Second
)

func TestKwok(t *testing.T) {
	env := start(t)
	t.Run("Machines get Nodes, and a deleted Machine is replaced", env.machinesGetNodes)
	t.Run("deleting the infrastructure machine stops the kubelet", env.deletionStopsTheKubelet)
	t.Run("an external control plane needs no Machines", env.externalControlPlane)
}

func (e *environment) machinesGetNodes(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	prod := kwok.NewCluster("prod")
	e.connect(t, prod)
	begin := time.Now()
	g.Expect(kwok.Create(ctx, e.management,
		prod.Objects(),
		prod.ControlPlaneMachine("prod-control-plane"),
		prod.MachineDeployment("prod-workers", 3, kwok.MachineLabels(map[string]string{"node-role.kubernetes.io/worker": ""})),
	)).To(Succeed())
	g.Expect(kwok.WaitForMachinesRunning(ctx, e.management, prod.Key(), 4)).To(Succeed())
	t.Logf("4 Machines are Running after %s", time.Since(begin))

	controlPlane := e.node(t, "prod-control-plane")
	g.Expect(controlPlane.Spec.ProviderID).To(Equal("kwok:///prod/prod-control-plane"))
	g.Expect(controlPlane.Labels).To(HaveKey("node-role.kubernetes.io/control-plane"))
	g.Expect(controlPlane.Spec.Taints).To(ConsistOf(HaveField("Key", "node-role.kubernetes.io/control-plane")))

	worker := e.machines(t, prod, client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: "prod-workers"})[0]
	g.Expect(worker.Status.NodeRef.Name).To(Equal(worker.Name))
	node := e.node(t, worker.Name)
	g.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(worker.Spec.Version))
	g.Expect(node.Status.Allocatable.Cpu().Value()).To(BeEquivalentTo(16))
	g.Expect(node.Labels).To(And(HaveKey("node-role.kubernetes.io/worker"), HaveKey(corev1.LabelTopologyZone)))
	g.Expect(node.Spec.Taints).To(BeEmpty())

	begin = time.Now()
	g.Expect(e.management.Delete(ctx, &worker)).To(Succeed())
	g.Eventually(e.gone(ctx, e.workload, node), soon).Should(BeTrue())
	g.Eventually(e.gone(ctx, e.management, &worker), soon).Should(BeTrue())
	t.Logf("a Machine and its Node are gone after %s", time.Since(begin))
	g.Expect(kwok.WaitForMachinesRunning(ctx, e.management, prod.Key(), 4)).To(Succeed())
	t.Logf("and replaced after %s", time.Since(begin))
}

func (e *environment) deletionStopsTheKubelet(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	lab := kwok.NewCluster("lab").WithExternalControlPlane()
	e.connect(t, lab)
	g.Expect(kwok.Create(ctx, e.management, lab.Objects(), lab.Machine("lab-1"))).To(Succeed())
	g.Expect(kwok.WaitForMachinesRunning(ctx, e.management, lab.Key(), 1)).To(Succeed())
	pod := e.runPod(t, "survivor", "lab-1")

	kwokMachine := &infrav1.KwokMachine{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Key().Namespace, Name: "lab-1"}}
	g.Expect(e.management.Delete(ctx, kwokMachine)).To(Succeed())
	g.Eventually(e.gone(ctx, e.management, kwokMachine), soon).Should(BeTrue())

	g.Expect(e.node(t, "lab-1").Labels).NotTo(HaveKey(controlplane.KubeletLabel))
	g.Expect(e.workload.Delete(ctx, pod)).To(Succeed())
	g.Consistently(e.gone(ctx, e.workload, pod), aWhile).Should(BeFalse(), "no kubelet terminates the Pod")
}

func (e *environment) externalControlPlane(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	edge := kwok.NewCluster("edge").InNamespace("edge").WithExternalControlPlane()
	e.connect(t, edge)
	g.Expect(e.management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "edge"}})).To(Succeed())
	g.Expect(kwok.Create(ctx, e.management,
		edge.Objects(),
		edge.MachineDeployment("edge-workers", 2, kwok.With(func(template *infrav1.KwokMachineTemplate) {
			template.Spec.Template.Spec.Zone = "edge-zone"
			template.Spec.Template.Spec.Capacity = corev1.ResourceList{corev1.ResourcePods: *podCount(5)}
		})),
	)).To(Succeed())
	g.Expect(kwok.WaitForMachinesRunning(ctx, e.management, edge.Key(), 2)).To(Succeed())
	machine := e.machines(t, edge)[0]
	node := e.node(t, machine.Name)
	g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, "edge-zone"))
	g.Expect(node.Status.Allocatable.Pods().Value()).To(BeEquivalentTo(5))

	g.Expect(e.management.Delete(ctx, &machine)).To(Succeed())
	g.Eventually(e.gone(ctx, e.workload, node), soon).Should(BeTrue(), "Cluster API deletes the Node without a control plane Machine")

	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "edge"}}
	begin := time.Now()
	g.Expect(e.management.Delete(ctx, cluster)).To(Succeed())
	g.Eventually(e.gone(ctx, e.management, cluster), soon).Should(BeTrue())
	t.Logf("the Cluster is gone after %s", time.Since(begin))
	g.Expect(apierrors.IsNotFound(e.management.Get(ctx, edge.Key(), &infrav1.KwokCluster{}))).To(BeTrue())
}
