package models

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// createCluster creates a Cluster and waits until the infrastructure is provisioned.
func (f *fixture) createCluster() kwok.Cluster {
	cluster := kwok.NewCluster("c1").WithExternalControlPlane()
	f.Expect(kwok.Create(f.ctx, f.management, cluster.Objects())).To(Succeed())
	f.eventually(func(g Gomega) {
		stored := &clusterv1.Cluster{ObjectMeta: objectMeta("c1")}
		f.get(g, f.management, stored)
		g.Expect(stored.Status.Initialization.InfrastructureProvisioned).To(HaveValue(BeTrue()))
		secret := &corev1.Secret{ObjectMeta: objectMeta("c1-kubeconfig")}
		f.get(g, f.management, secret)
		g.Expect(string(secret.Data["value"])).To(ContainSubstring("http://workload"))
	})
	return cluster
}

func (f *fixture) runs(g Gomega, name string) *clusterv1.Machine {
	machine := &clusterv1.Machine{ObjectMeta: objectMeta(name)}
	f.get(g, f.management, machine)
	g.Expect(machine.Status.Phase).To(Equal("Running"))
	g.Expect(machine.Status.NodeRef.Name).To(Equal(name))
	g.Expect(meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineReadyCondition)).To(BeTrue())
	return machine
}

func TestMachineDeletionWaitsForHook(t *testing.T) {
	simulate(t, func(f *fixture) {
		cluster := f.createCluster()
		f.Expect(kwok.Create(f.ctx, f.management, cluster.Machine("m1"))).To(Succeed())
		var machine *clusterv1.Machine
		f.eventually(func(g Gomega) { machine = f.runs(g, "m1") })
		machine.Annotations = map[string]string{clusterv1.PreDrainDeleteHookAnnotationPrefix + "/test": ""}
		f.Expect(f.management.Update(f.ctx, machine)).To(Succeed())
		f.Expect(f.management.Delete(f.ctx, machine)).To(Succeed())
		time.Sleep(longest)
		f.get(f, f.management, machine)
		deleting := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineDeletingCondition)
		f.Expect(deleting.Reason).To(Equal(clusterv1.MachineDeletingWaitingForPreDrainHookReason))
		f.Expect(machine.Status.Deletion.WaitForPreDrainHookStartTime.IsZero()).To(BeFalse())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
		f.get(f, f.workload, node)
		f.Expect(node.Spec.Unschedulable).To(BeFalse())
		machine.Annotations = map[string]string{clusterv1.ExcludeNodeDrainingAnnotation: ""}
		f.Expect(f.management.Update(f.ctx, machine)).To(Succeed())
		f.eventually(func(g Gomega) {
			g.Expect(apierrors.IsNotFound(f.management.Get(f.ctx, client.ObjectKeyFromObject(machine), machine))).To(BeTrue())
		})
		f.Expect(apierrors.IsNotFound(f.workload.Get(f.ctx, client.ObjectKeyFromObject(node), node))).To(BeTrue())
	})
}

func TestMachineDeletionDrainsAndClusterDeletionRemovesAll(t *testing.T) {
	simulate(t, func(f *fixture) {
		cluster := f.createCluster()
		f.Expect(kwok.Create(f.ctx, f.management, cluster.Machine("m1"), cluster.Machine("m2"), cluster.MachineDeployment("pool", 1))).To(Succeed())
		f.eventually(func(g Gomega) { f.runs(g, "m1"); f.runs(g, "m2") })
		f.create(newDeployment("web", 5))
		f.isAvailable("web", 5)
		f.takeEvents()
		f.Expect(f.management.Delete(f.ctx, &clusterv1.Machine{ObjectMeta: objectMeta("m1")})).To(Succeed())
		f.eventually(func(g Gomega) { g.Expect(f.takeEvents()).To(ContainElement("removed m1")) })
		f.isAvailable("web", 5)
		f.Expect(f.management.Delete(f.ctx, &clusterv1.Cluster{ObjectMeta: objectMeta("c1")})).To(Succeed())
		f.eventually(func(g Gomega) {
			g.Expect(apierrors.IsNotFound(f.management.Get(f.ctx, cluster.Key(), &clusterv1.Cluster{}))).To(BeTrue())
			secret := client.ObjectKey{Namespace: "default", Name: "c1-kubeconfig"}
			g.Expect(apierrors.IsNotFound(f.management.Get(f.ctx, secret, &corev1.Secret{}))).To(BeTrue())
		})
		machines := &clusterv1.MachineList{}
		f.Expect(f.management.List(f.ctx, machines)).To(Succeed())
		f.Expect(machines.Items).To(BeEmpty())
	})
}

func TestMachineDeploymentRollout(t *testing.T) {
	simulate(t, func(f *fixture) {
		cluster := f.createCluster()
		f.Expect(kwok.Create(f.ctx, f.management, cluster.MachineDeployment("pool", 3))).To(Succeed())
		machines := func(g Gomega) []clusterv1.Machine {
			all := &clusterv1.MachineList{}
			g.Expect(f.management.List(f.ctx, all, client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: "pool"})).To(Succeed())
			return all.Items
		}
		allRun := func(g Gomega) {
			g.Expect(machines(g)).To(HaveLen(3))
			for _, machine := range machines(g) {
				f.runs(g, machine.Name)
				g.Expect(meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineUpToDateCondition)).To(BeTrue())
			}
		}
		f.eventually(allRun)
		f.takeEvents()
		deployment := &clusterv1.MachineDeployment{ObjectMeta: objectMeta("pool")}
		f.get(f, f.management, deployment)
		deployment.Spec.Template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](30)
		f.Expect(f.management.Update(f.ctx, deployment)).To(Succeed())
		f.eventually(func(g Gomega) {
			for _, machine := range machines(g) {
				g.Expect(machine.Spec.Deletion.NodeDrainTimeoutSeconds).To(HaveValue(BeEquivalentTo(30)))
			}
		})
		f.Expect(f.takeEvents()).To(BeEmpty(), "deletion timeouts are propagated in place")
		f.get(f, f.management, deployment)
		deployment.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("another")
		f.Expect(f.management.Update(f.ctx, deployment)).To(Succeed())
		time.Sleep(5 * time.Second)
		outdated := slices.DeleteFunc(machines(f), func(m clusterv1.Machine) bool {
			return !meta.IsStatusConditionFalse(m.Status.Conditions, clusterv1.MachineUpToDateCondition)
		})
		f.Expect(outdated).To(HaveLen(3))
		f.eventually(func(g Gomega) {
			allRun(g)
			for _, machine := range machines(g) {
				g.Expect(machine.Spec.Bootstrap.DataSecretName).To(HaveValue(Equal("another")))
			}
		})
		count, deleting := 3, 0
		for _, event := range f.takeEvents() {
			switch strings.Fields(event)[0] {
			case "created":
				count++
			case "deleted":
				deleting++
			case "removed":
				count, deleting = count-1, deleting-1
			}
			f.Expect(count).To(And(BeNumerically("<=", 4), BeNumerically(">=", 3)), event)
			f.Expect(deleting).To(BeNumerically("<=", 1), event)
		}
	})
}
