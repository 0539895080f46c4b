package machinedrain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestImminentMaintenance(t *testing.T) {
	deleted := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
	served := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		v1alpha1.OwnerClusterAnnotation: cluster.String(), v1alpha1.OwnerMachineAnnotation: "default/m1",
	}}}
	for _, tc := range []struct {
		name         string
		change       func(*clusterv1.Machine)
		maintenances []v1alpha1.NodeMaintenance
		after        time.Duration
		imminent     bool
	}{
		{name: "E46: a Machine that was deleted a moment ago", after: time.Second, imminent: true},
		{name: "E46: a Machine that was deleted two seconds ago", after: 2 * time.Second},
		{name: "E46: a deletion in the future", after: -3 * time.Second},
		{name: "E46: a Machine with a NodeMaintenance", maintenances: []v1alpha1.NodeMaintenance{served}},
		{name: "E46: a NodeMaintenance of another author", maintenances: []v1alpha1.NodeMaintenance{{}}, imminent: true},
		{name: "E46: a Machine without the hook", change: func(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.PreDrainHookAnnotation) }},
		{name: "E46: a Machine without a Node", change: func(m *clusterv1.Machine) { m.Status.NodeRef.Name = "" }},
		{name: "E46: a paused Machine", change: func(m *clusterv1.Machine) { m.Annotations[clusterv1.PausedAnnotation] = "" }},
		{name: "E46: a Machine whose Node is not drained", change: func(m *clusterv1.Machine) { m.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = "" }},
		{name: "E46: a Machine to which the exclude annotation of a release was copied", change: func(m *clusterv1.Machine) {
			m.Annotations[clusterv1.ExcludeNodeDrainingAnnotation] = v1alpha1.HookOwner
		}, after: time.Second, imminent: true},
		{name: "E46: a Machine that is not deleted", change: func(m *clusterv1.Machine) { m.DeletionTimestamp = nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "m1", DeletionTimestamp: new(metav1.NewTime(deleted)), Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: ""},
			}}
			machine.Status.NodeRef.Name = "node"
			if tc.change != nil {
				tc.change(machine)
			}
			node, until := machinedrain.ImminentMaintenance(machine, cluster, tc.maintenances, deleted.Add(tc.after))
			if !tc.imminent {
				g.Expect(node).To(BeEmpty())
				return
			}
			g.Expect(node).To(Equal("node"))
			g.Expect(until).To(Equal(deleted.Add(2 * time.Second)))
		})
	}
}
