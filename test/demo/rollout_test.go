package main

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func worker(name, template string, change ...func(*clusterv1.Machine)) *clusterv1.Machine {
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		clusterv1.MachineDeploymentNameLabel: pool, clusterv1.MachineDeploymentUniqueLabel: template,
	}}}
	m.Status.Phase = string(clusterv1.MachinePhaseRunning)
	m.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineNodeReadyCondition, Status: metav1.ConditionTrue}}
	for _, c := range change {
		c(m)
	}
	return m
}

func TestRollout(t *testing.T) {
	g := NewWithT(t)
	deleted := func(m *clusterv1.Machine) { m.DeletionTimestamp = ptr.To(metav1.NewTime(epoch)) }
	w := newWorld()
	w.sawMachine(worker("long-gone", "v1", deleted), true, epoch.Add(-time.Minute))
	w.sawMachine(worker("a", "v1", deleted), true, epoch.Add(time.Second))
	w.sawMachine(worker("b", "v1", deleted), false, epoch)
	w.sawMachine(worker("c", "v1"), false, epoch)
	w.sawMachine(worker("d", "v2"), false, epoch)
	w.sawMachine(worker("e", "v2", func(m *clusterv1.Machine) { m.Status.Phase = "Provisioning" }), false, epoch)
	w.sawMaintenance(&v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "b-1", Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: namespace + "/b"}},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain},
		Status: v1alpha1.NodeMaintenanceStatus{
			Summary:      v1alpha1.NodeMaintenanceSummary{PodsEvacuating: 2, PodsPending: 1},
			NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{}},
		},
	}, false, epoch)
	g.Expect(w.rolloutOf(map[string]bool{"v1": true}).String()).To(Equal("Machines 2 new (1 running), 2 old  evicted   0  draining: b"))
}
