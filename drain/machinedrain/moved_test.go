package machinedrain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestLeftByMove(t *testing.T) {
	t.Run("M16: the drain of a deletion that clusterctl move has forgotten is taken back, and no other", func(t *testing.T) {
		cases := map[string]struct {
			change func(*v1alpha1.NodeMaintenance, *clusterv1.Machine)
			left   bool
		}{
			"begun elsewhere": {left: true},
			"begun here": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = "here"
			}},
			"the Machine is being deleted here, too": {change: func(_ *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) {
				machine.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(0, 0)))
			}},
			"another Machine's": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerMachineAnnotation] = "ns/other"
			}},
			"another Cluster's": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.OwnerClusterAnnotation] = "other/c"
			}},
			"one that waits for its turn": {left: true, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Spec.Stage = v1alpha1.StageCordon
			}},
			"a rollout's announcement, which comes again where it is still due": {left: true, change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Spec.Stage, m.Annotations[v1alpha1.RequestedForAnnotation] = v1alpha1.StageIdle, v1alpha1.RequestedForRollout
			}},
			"asked for by the Machine's annotation, which moves with it": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) {
				m.Annotations[v1alpha1.RequestedForAnnotation] = v1alpha1.RequestedForStage
			}},
			"completed": {change: func(m *v1alpha1.NodeMaintenance, _ *clusterv1.Machine) { machinedrain.RevertMoved(m, "elsewhere") }},
		}
		for name, c := range cases {
			g := NewWithT(t)
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}, Spec: clusterv1.MachineSpec{ClusterName: "c"}}
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			m.Annotations = map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: "elsewhere", v1alpha1.OwnerClusterAnnotation: "ns/c", v1alpha1.OwnerMachineAnnotation: "ns/m",
			}
			if c.change != nil {
				c.change(m, machine)
			}
			g.Expect(machinedrain.OrphanedByMove(m, machine, "here")).To(Equal(c.left), name)
		}
	})
}

func TestTakeBack(t *testing.T) {
	g := NewWithT(t)
	m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	machinedrain.RevertMoved(m, "here")
	g.Expect(m.Spec.Stage).To(Equal(v1alpha1.StageComplete))
	g.Expect(m.Annotations).To(HaveKeyWithValue(v1alpha1.OwnerManagementClusterAnnotation, "here"))
}

func TestForgetRelease(t *testing.T) {
	t.Run("M12: of the exclude annotations only those with our value are taken off a Machine that runs", func(t *testing.T) {
		g := NewWithT(t)
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			clusterv1.ExcludeNodeDrainingAnnotation: v1alpha1.HookOwner, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: "",
		}}}
		g.Expect(machinedrain.ClearReleaseAnnotations(machine)).To(BeTrue())
		g.Expect(machine.Annotations).To(Equal(map[string]string{clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: ""}))
		g.Expect(machinedrain.ClearReleaseAnnotations(machine)).To(BeFalse())
	})
}

func TestUpdateAdopts(t *testing.T) {
	t.Run("M16: a Machine that is deleted again after a move goes on with the NodeMaintenance that is there", func(t *testing.T) {
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
