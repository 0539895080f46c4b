package machinedrain_test

import (
	"cmp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestImminentCordon(t *testing.T) {
	deleted := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	cluster := types.NamespacedName{Namespace: "default", Name: "c1"}
	serving := func(machine string, cordoned metav1.ConditionStatus) []v1alpha1.NodeMaintenance {
		m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1alpha1.OwnerClusterAnnotation: cluster.String(), v1alpha1.OwnerMachineAnnotation: machine,
		}}}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceCordoned, Status: cordoned}}
		return []v1alpha1.NodeMaintenance{m}
	}
	reported := func(reason string, generation int64) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) {
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Reason: reason, ObservedGeneration: generation}}
		}
	}
	for _, tc := range []struct {
		name         string
		change       func(*clusterv1.Machine)
		after        time.Duration
		maintenances []v1alpha1.NodeMaintenance
		imminent     bool
		lasts        time.Duration // 0: until two seconds after the deletion
	}{
		{name: "E46: a Machine that was deleted a moment ago", after: time.Second, imminent: true},
		{name: "E46: a Machine without a report, deleted two seconds ago", after: 2 * time.Second, imminent: true, lasts: 3 * time.Second},
		{name: "E46: a Machine without a report, deleted ten seconds ago", after: 10 * time.Second},
		{
			name: "E46: a Machine whose report is from before its deletion", after: 9 * time.Second, change: reported(v1alpha1.ReasonInvalidDrainRule, 1),
			imminent: true, lasts: 10 * time.Second,
		},
		{
			name: "E46: a Machine whose drain is requested", after: 5 * time.Second, change: reported(v1alpha1.ReasonMachineDraining, 2),
			imminent: true, lasts: 6 * time.Second,
		},
		{name: "E46: a Machine whose drain cannot begin", after: time.Second, change: reported(v1alpha1.ReasonInvalidDrainRule, 2), imminent: true},
		{name: "E46: a Machine whose drain cannot begin, deleted two seconds ago", after: 2 * time.Second, change: reported(v1alpha1.ReasonInvalidDrainRule, 2)},
		{name: "E46: a deletion in the future", after: -3 * time.Second},
		{name: "E46: a Machine whose Node is cordoned", maintenances: serving("default/m1", metav1.ConditionTrue)},
		{name: "E46: a Machine with a NodeMaintenance that has not cordoned its Node", maintenances: serving("default/m1", metav1.ConditionFalse), imminent: true},
		{name: "E46: the NodeMaintenance of another Machine", maintenances: serving("default/m2", metav1.ConditionTrue), imminent: true},
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
				Namespace: "default", Name: "m1", Generation: 2, DeletionTimestamp: new(metav1.NewTime(deleted)),
				Annotations: map[string]string{v1alpha1.PreDrainHookAnnotation: ""},
			}}
			machine.Status.NodeRef.Name = "node"
			if tc.change != nil {
				tc.change(machine)
			}
			node, until := machinedrain.ImminentCordon(machine, machinedrain.Cordoned(tc.maintenances, cluster), deleted.Add(tc.after))
			if !tc.imminent {
				g.Expect(node).To(BeEmpty())
				return
			}
			g.Expect(node).To(Equal("node"))
			g.Expect(until).To(Equal(deleted.Add(cmp.Or(tc.lasts, 2*time.Second))))
		})
	}
}
