package machinedrain_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestComplete(t *testing.T) {
	g := NewWithT(t)
	m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	machinedrain.Complete(m, "here")
	g.Expect(m.Spec.Stage).To(Equal(v1alpha1.StageComplete))
	g.Expect(m.Annotations).To(HaveKeyWithValue(v1alpha1.OwnerManagementClusterAnnotation, "here"))
}

func TestUpdateAdopts(t *testing.T) {
	t.Run("M16: adopts the present NodeMaintenance if a Machine is deleted again after a move", func(t *testing.T) {
		g := NewWithT(t)
		of := func(managementCluster string) *v1alpha1.NodeMaintenance {
			return machinedrain.Maintenance(machinedrain.Request{ManagementCluster: managementCluster, Machine: &clusterv1.Machine{}, Node: &corev1.Node{}})
		}
		present := of("elsewhere")
		g.Expect(machinedrain.Update(present, of("here"))).To(BeTrue())
		g.Expect(present).To(Equal(of("here")))
		g.Expect(machinedrain.Update(present, of("here"))).To(BeFalse())
	})
}

func TestMaintenanceReason(t *testing.T) {
	g := NewWithT(t)
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", Annotations: map[string]string{v1alpha1.MachineStageReasonAnnotation: "new disk"}}}
	of := func(purpose string) *v1alpha1.NodeMaintenance {
		return machinedrain.Maintenance(machinedrain.Request{Machine: machine, Node: &corev1.Node{}, For: purpose})
	}
	present := of(v1alpha1.RequestedForStage)
	g.Expect(present.Spec.Reason).To(Equal("Machine default/m requests it with the annotation maintenance.cluster.x-k8s.io/stage: new disk"))
	g.Expect(of(v1alpha1.RequestedForDeletion).Spec.Reason).To(Equal("Machine default/m is being deleted"))

	machine.Annotations[v1alpha1.MachineStageReasonAnnotation] = "new memory"
	g.Expect(machinedrain.Update(present, of(v1alpha1.RequestedForStage))).To(BeTrue())
	g.Expect(present.Spec.Reason).To(HaveSuffix(": new memory"))
	g.Expect(machinedrain.Update(present, of(v1alpha1.RequestedForStage))).To(BeFalse())
}
