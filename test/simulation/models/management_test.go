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
func (w *world) createCluster() kwok.Cluster {
	cluster := kwok.NewCluster("c1").WithExternalControlPlane()
	w.Expect(kwok.Create(w.ctx, w.management, cluster.Objects())).To(Succeed())
	w.eventually(func(g Gomega) {
		stored := &clusterv1.Cluster{ObjectMeta: objectMeta("c1")}
		w.get(g, w.management, stored)
		g.Expect(stored.Status.Initialization.InfrastructureProvisioned).To(HaveValue(BeTrue()))
		secret := &corev1.Secret{ObjectMeta: objectMeta("c1-kubeconfig")}
		w.get(g, w.management, secret)
		g.Expect(string(secret.Data["value"])).To(ContainSubstring("http://workload"))
	})
	return cluster
}

func (w *world) runs(g Gomega, name string) *clusterv1.Machine {
	machine := &clusterv1.Machine{ObjectMeta: objectMeta(name)}
	w.get(g, w.management, machine)
	g.Expect(machine.Status.Phase).To(Equal("Running"))
	g.Expect(machine.Status.NodeRef.Name).To(Equal(name))
	g.Expect(meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineReadyCondition)).To(BeTrue())
	return machine
}

func TestMachineDeletionWaitsForHook(t *testing.T) {
	simulate(t, func(w *world) {
		cluster := w.createCluster()
		w.Expect(kwok.Create(w.ctx, w.management, cluster.Machine("m1"))).To(Succeed())
		var machine *clusterv1.Machine
		w.eventually(func(g Gomega) { machine = w.runs(g, "m1") })
		machine.Annotations = map[string]string{clusterv1.PreDrainDeleteHookAnnotationPrefix + "/test": ""}
		w.Expect(w.management.Update(w.ctx, machine)).To(Succeed())
		w.Expect(w.management.Delete(w.ctx, machine)).To(Succeed())
		time.Sleep(longest)
		w.get(w, w.management, machine)
		deleting := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineDeletingCondition)
		w.Expect(deleting.Reason).To(Equal(clusterv1.MachineDeletingWaitingForPreDrainHookReason))
		w.Expect(machine.Status.Deletion.WaitForPreDrainHookStartTime.IsZero()).To(BeFalse())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}
		w.get(w, w.workload, node)
		w.Expect(node.Spec.Unschedulable).To(BeFalse())
		machine.Annotations = map[string]string{clusterv1.ExcludeNodeDrainingAnnotation: ""}
		w.Expect(w.management.Update(w.ctx, machine)).To(Succeed())
		w.eventually(func(g Gomega) {
			g.Expect(apierrors.IsNotFound(w.management.Get(w.ctx, client.ObjectKeyFromObject(machine), machine))).To(BeTrue())
		})
		w.Expect(apierrors.IsNotFound(w.workload.Get(w.ctx, client.ObjectKeyFromObject(node), node))).To(BeTrue())
	})
}

func TestMachineDeletionDrainsAndClusterDeletionRemovesAll(t *testing.T) {
	simulate(t, func(w *world) {
		cluster := w.createCluster()
		w.Expect(kwok.Create(w.ctx, w.management, cluster.Machine("m1"), cluster.Machine("m2"), cluster.MachineDeployment("pool", 1))).To(Succeed())
		w.eventually(func(g Gomega) { w.runs(g, "m1"); w.runs(g, "m2") })
		w.create(newDeployment("web", 5))
		w.isAvailable("web", 5)
		w.takeEvents()
		w.Expect(w.management.Delete(w.ctx, &clusterv1.Machine{ObjectMeta: objectMeta("m1")})).To(Succeed())
		w.eventually(func(g Gomega) { g.Expect(w.takeEvents()).To(ContainElement("removed m1")) })
		w.isAvailable("web", 5)
		w.Expect(w.management.Delete(w.ctx, &clusterv1.Cluster{ObjectMeta: objectMeta("c1")})).To(Succeed())
		w.eventually(func(g Gomega) {
			g.Expect(apierrors.IsNotFound(w.management.Get(w.ctx, cluster.Key(), &clusterv1.Cluster{}))).To(BeTrue())
			secret := client.ObjectKey{Namespace: "default", Name: "c1-kubeconfig"}
			g.Expect(apierrors.IsNotFound(w.management.Get(w.ctx, secret, &corev1.Secret{}))).To(BeTrue())
		})
		machines := &clusterv1.MachineList{}
		w.Expect(w.management.List(w.ctx, machines)).To(Succeed())
		w.Expect(machines.Items).To(BeEmpty())
	})
}

func TestMachineDeploymentRollout(t *testing.T) {
	simulate(t, func(w *world) {
		cluster := w.createCluster()
		w.Expect(kwok.Create(w.ctx, w.management, cluster.MachineDeployment("pool", 3))).To(Succeed())
		machines := func(g Gomega) []clusterv1.Machine {
			all := &clusterv1.MachineList{}
			g.Expect(w.management.List(w.ctx, all, client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: "pool"})).To(Succeed())
			return all.Items
		}
		allRun := func(g Gomega) {
			g.Expect(machines(g)).To(HaveLen(3))
			for _, machine := range machines(g) {
				w.runs(g, machine.Name)
				g.Expect(meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineUpToDateCondition)).To(BeTrue())
			}
		}
		w.eventually(allRun)
		w.takeEvents()
		deployment := &clusterv1.MachineDeployment{ObjectMeta: objectMeta("pool")}
		w.get(w, w.management, deployment)
		deployment.Spec.Template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](30)
		w.Expect(w.management.Update(w.ctx, deployment)).To(Succeed())
		w.eventually(func(g Gomega) {
			for _, machine := range machines(g) {
				g.Expect(machine.Spec.Deletion.NodeDrainTimeoutSeconds).To(HaveValue(BeEquivalentTo(30)))
			}
		})
		w.Expect(w.takeEvents()).To(BeEmpty(), "deletion timeouts are propagated in place")
		w.get(w, w.management, deployment)
		deployment.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("another")
		w.Expect(w.management.Update(w.ctx, deployment)).To(Succeed())
		time.Sleep(5 * time.Second)
		outdated := slices.DeleteFunc(machines(w), func(m clusterv1.Machine) bool {
			return !meta.IsStatusConditionFalse(m.Status.Conditions, clusterv1.MachineUpToDateCondition)
		})
		w.Expect(outdated).To(HaveLen(3))
		w.eventually(func(g Gomega) {
			allRun(g)
			for _, machine := range machines(g) {
				g.Expect(machine.Spec.Bootstrap.DataSecretName).To(HaveValue(Equal("another")))
			}
		})
		count, deleting := 3, 0
		for _, event := range w.takeEvents() {
			switch strings.Fields(event)[0] {
			case "created":
				count++
			case "deleted":
				deleting++
			case "removed":
				count, deleting = count-1, deleting-1
			}
			w.Expect(count).To(And(BeNumerically("<=", 4), BeNumerically(">=", 3)), event)
			w.Expect(deleting).To(BeNumerically("<=", 1), event)
		}
	})
}
