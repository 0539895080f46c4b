package report_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func machine(name string, labels map[string]string) clusterv1.Machine {
	return clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec:       clusterv1.MachineSpec{ClusterName: "prod"},
		Status:     clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: name}},
	}
}

func TestWriteStatus(t *testing.T) {
	workers := map[string]string{clusterv1.MachineDeploymentNameLabel: "workers"}
	deleted := machine("w1", workers)
	deleted.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-5 * time.Minute)))
	deleted.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMachineDraining, Message: "Drain not completed yet",
		LastTransitionTime: metav1.NewTime(now.Add(-time.Minute)),
	}}
	m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "w1-abc", Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: "default/w1"}}}
	m.Spec.Stage = v1alpha1.StageDrain
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	m.Status.Summary = v1alpha1.NodeMaintenanceSummary{Nodes: 1, PodsEvacuating: 2, PodsPending: 1, PodsEvacuated: 4}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "w1"}, Blocked: []v1alpha1.BlockedPod{
		{Pod: "shop/web-1", Why: "waiting\x1b[2J", Since: ptr.To(metav1.NewTime(now.Add(-30 * time.Second)))},
		{Pod: "shop/web-2", Why: "waiting\x1b[2J", Since: ptr.To(metav1.NewTime(now.Add(-10 * time.Second)))},
	}}}

	t.Run("K6, K7, K37: drains are shown below their owners, with what blocks them", func(t *testing.T) {
		machines := []clusterv1.Machine{
			machine("cp", map[string]string{clusterv1.MachineControlPlaneLabel: "", clusterv1.MachineControlPlaneNameLabel: "cp"}), machine("w2", workers), deleted,
			machine("p1", map[string]string{clusterv1.MachinePoolNameLabel: "pool"}),
		}
		status := &report.Status{
			Clusters: report.StatusOf(machines, map[string]report.Drains{"default/prod": {Maintenances: []v1alpha1.NodeMaintenance{m}}}),
			Gaps:     []string{"Cluster default/other: timeout"},
		}
		var out bytes.Buffer
		report.WriteStatus(&out, status, false, now, terminal.Style{})
		NewWithT(t).Expect(out.String()).To(Equal(`Cluster default/prod
  ControlPlane cp: 0 under maintenance of 1
  MachineDeployment workers: 1 under maintenance of 2
    Machine default/w1, deleted 5m ago, Draining
      NodeMaintenance w1-abc, stage Drain for 60s: ████░░░░ 4 of 7 Pods evacuated, 2 evacuating, 1 pending, 0 skipped; 0 of 1 Nodes drained
        Pods shop/web-1, shop/web-2 for at most 30s, now: waiting�[2J
  MachinePool pool: 0 under maintenance of 1

NOT READ
  Cluster default/other: timeout
`))
	})

	t.Run("K20: the wide format has the Node and each Pod", func(t *testing.T) {
		evacuations := []v1alpha1.Evacuation{
			{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", CreationTimestamp: metav1.NewTime(now.Add(-40 * time.Second)), Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: "w1"},
				},
				Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.LocalPodReference{Name: "web-0"}},
			},
		}
		status := &report.Status{
			Clusters: report.StatusOf([]clusterv1.Machine{deleted}, map[string]report.Drains{"default/prod": {
				Maintenances: []v1alpha1.NodeMaintenance{m}, Evacuations: evacuations,
			}}),
		}
		var out bytes.Buffer
		report.WriteStatus(&out, status, true, now, terminal.Style{})
		NewWithT(t).Expect(out.String()).To(Equal(`Cluster default/prod
  MachineDeployment workers: 1 under maintenance of 1
    Machine default/w1, Node w1, deleted 5m ago, Draining
      NodeMaintenance w1-abc, stage Drain for 60s: ████░░░░ 4 of 7 Pods evacuated, 2 evacuating, 1 pending, 0 skipped; 0 of 1 Nodes drained
        Pod shop/web-0 for 40s, now: Evacuation requested
        Pod shop/web-1 for 30s, now: waiting�[2J
        Pod shop/web-2 for 10s, now: waiting�[2J
`))
	})
}

func TestNothingRead(t *testing.T) {
	for name, test := range map[string]struct {
		gaps []string
		want string
	}{
		"says that there are none":                               {nil, "There are no Machines and no NodeMaintenances.\n"},
		"does not say so of a user who may not read any of them": {[]string{"No right"}, "No Machines and no NodeMaintenances were read.\n"},
	} {
		t.Run("K4: status "+name, func(t *testing.T) {
			var out bytes.Buffer
			report.WriteStatus(&out, &report.Status{Gaps: test.gaps}, false, now, terminal.Style{})
			NewWithT(t).Expect(out.String()).To(HavePrefix(test.want))
		})
	}
}

func TestCounts(t *testing.T) {
	for _, n := range []int32{-5, math.MinInt32, math.MaxInt32} {
		t.Run("K38: status shows a drain whose numbers another actor has written", func(t *testing.T) {
			m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
			m.Spec.Stage = v1alpha1.StageDrain
			m.Status.Summary = v1alpha1.NodeMaintenanceSummary{PodsEvacuated: n, PodsPending: 17, PodsEvacuating: max(n, 0)}
			var out bytes.Buffer
			report.WriteStatus(&out, &report.Status{Maintenances: report.MaintenancesOf(report.Drains{Maintenances: []v1alpha1.NodeMaintenance{m}}, "")}, false, now,
				terminal.Style{})
			NewWithT(t).Expect(out.String()).To(ContainSubstring("Pods evacuated"))
		})
	}
}

// drainsOf returns Machines that are being deleted, with a NodeMaintenance each, and Evacuations on their Nodes.
func drainsOf(machines, evacuations int) ([]clusterv1.Machine, map[string]report.Drains) {
	var all []clusterv1.Machine
	d := report.Drains{}
	for i := range machines {
		m := machine(fmt.Sprintf("w%d", i), nil)
		m.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		maintenance := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, Annotations: map[string]string{v1alpha1.OwnerMachineAnnotation: "default/" + m.Name},
		}}
		maintenance.Spec.Stage = v1alpha1.StageDrain
		maintenance.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: m.Name}}}
		all, d.Maintenances = append(all, m), append(d.Maintenances, maintenance)
	}
	for i := range evacuations {
		e := v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Annotations: map[string]string{v1alpha1.EvacuationNodeAnnotation: fmt.Sprintf("w%d", i%machines)},
		}}
		e.Spec.PodRef.Name = fmt.Sprintf("web-%d", i)
		d.Evacuations = append(d.Evacuations, e)
	}
	return all, map[string]report.Drains{"default/prod": d}
}

func TestStatusOfManyDrains(t *testing.T) {
	t.Run("K53: the time for a status grows with the drains and the Evacuations, and not with their product", func(t *testing.T) {
		g := NewWithT(t)
		all, drains := drainsOf(2_000, 40_000)
		var clusters []report.ClusterStatus
		g.Eventually(func() time.Duration { // again, because a busy machine may delay one attempt
			begin := time.Now()
			clusters = report.StatusOf(all, drains)
			return time.Since(begin)
		}).WithTimeout(time.Minute).Should(BeNumerically("<", time.Second), "some 20 ms; seconds if each drain looks at each Evacuation")
		g.Expect(clusters[0].Groups[0].Drains).To(HaveEach(HaveField("Maintenances", ConsistOf(HaveField("Pods", HaveLen(20))))))
	})
}
