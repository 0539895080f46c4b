package machinedrain_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestStageOf(t *testing.T) {
	for value, want := range map[string]v1alpha1.NodeMaintenanceStage{
		"Idle": v1alpha1.StageIdle, "Cordon": v1alpha1.StageCordon, "Drain": v1alpha1.StageDrain, "Complete": v1alpha1.StageComplete,
		"": "", "drain": "", "Drain!": "", "Reboot": "", strings.Repeat("Drain", 1000): "",
	} {
		t.Run("M30: reads the stage of the annotation: "+value[:min(len(value), 10)], func(t *testing.T) {
			g := NewWithT(t)
			stage, problem := machinedrain.StageOf(annotatedMachine(v1alpha1.MachineStageAnnotation, value))
			g.Expect(stage).To(Equal(want))
			if want != "" {
				g.Expect(problem).To(BeEmpty())
				return
			}
			g.Expect(problem).To(ContainSubstring("is not a stage"))
			g.Expect(len(problem)).To(BeNumerically("<", 200), "the value is truncated")
		})
	}
	t.Run("M30: requests no stage without the annotation", func(t *testing.T) {
		g := NewWithT(t)
		stage, problem := machinedrain.StageOf(&clusterv1.Machine{})
		g.Expect(stage).To(BeEmpty())
		g.Expect(problem).To(BeEmpty())
	})
}

func TestStageCondition(t *testing.T) {
	in := func(stage v1alpha1.NodeMaintenanceStage, conditions ...string) *v1alpha1.NodeMaintenance {
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m-1"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage}}
		m.Generation = 2
		for _, kind := range conditions {
			m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, ObservedGeneration: 2})
		}
		return m
	}
	outdated := func(m *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
		m.Generation++
		return m
	}
	for _, test := range []struct {
		name          string
		requested     v1alpha1.NodeMaintenanceStage
		m             *v1alpha1.NodeMaintenance
		status        metav1.ConditionStatus
		reason, words string
	}{
		{"announces in stage Idle", v1alpha1.StageIdle, in(v1alpha1.StageIdle), "True", v1alpha1.ReasonMachineAnnounced, "m-1 announces"},
		{"waits for the NodeMaintenance", v1alpha1.StageCordon, nil, "False", v1alpha1.ReasonMachineCordoning, "Waiting for the NodeMaintenance"},
		{"waits for the Node to be cordoned", v1alpha1.StageCordon, in(v1alpha1.StageCordon), "False", v1alpha1.ReasonMachineCordoning, "to cordon the Node"},
		{"is cordoned", v1alpha1.StageCordon, in(v1alpha1.StageCordon, v1alpha1.NodeMaintenanceCordoned), "True", v1alpha1.ReasonMachineCordoned, "is cordoned"},
		{
			"ignores the status of an earlier stage", v1alpha1.StageCordon, outdated(in(v1alpha1.StageCordon, v1alpha1.NodeMaintenanceCordoned)), "False",
			v1alpha1.ReasonMachineCordoning, "to cordon",
		},
		{"rejects an earlier stage", v1alpha1.StageCordon, in(v1alpha1.StageDrain), "False", v1alpha1.ReasonInvalidStage, "only move forward"},
		{"waits for completion", v1alpha1.StageComplete, in(v1alpha1.StageComplete), "False", v1alpha1.ReasonMachineCompleting, "m-1 to complete"},
		{"is completed", v1alpha1.StageComplete, nil, "True", v1alpha1.ReasonMachineCompleted, "No maintenance"},
	} {
		t.Run("M30: "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			got := machinedrain.StageCondition(test.requested, test.m)
			g.Expect(got.Type).To(Equal(v1alpha1.MachineNodeMaintenance))
			g.Expect(got.Status).To(Equal(test.status))
			g.Expect(got.Reason).To(Equal(test.reason))
			g.Expect(got.Message).To(ContainSubstring(test.words))
		})
	}
}

func TestDrainInPlace(t *testing.T) { // M80
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	machine := annotatedMachine(v1alpha1.MachineStageAnnotation, "Drain")
	g.Expect(machinedrain.IsDraining(machine)).To(BeFalse(), "the manager has not observed the request")
	g.Expect(machinedrain.RequestDrain(now)(machine)).To(BeTrue())
	g.Expect(machinedrain.RequestDrain(now.Add(time.Hour))(machine)).To(BeFalse(), "the first time counts")
	g.Expect(machinedrain.IsDraining(machine)).To(BeTrue())
	g.Expect(*machinedrain.RequestedAt(machine)).To(BeTemporally("==", now))

	machine.Annotations[v1alpha1.DrainStartedAnnotation] = now.UTC().Format(time.RFC3339)
	machinedrain.SetHook(machine)
	g.Expect(machine.Annotations).To(HaveKey(v1alpha1.DrainStartedAnnotation), "the clock of the drain runs")

	g.Expect(machinedrain.WasDrained(machine)).To(BeFalse())
	machine.Status.Conditions = []metav1.Condition{machinedrain.ResultCondition(v1alpha1.ReasonMachineDrained, "The Node is drained")}
	g.Expect(machinedrain.WasDrained(machine)).To(BeTrue())
	g.Expect(machinedrain.IsDraining(machine)).To(BeFalse(), "it does not count for maxParallelDrains")

	machine.Status.Conditions = nil
	delete(machine.Annotations, v1alpha1.MachineStageAnnotation)
	g.Expect(machinedrain.IsDraining(machine)).To(BeFalse(), "the request is withdrawn")
	g.Expect(machinedrain.EndMaintenance(machine)).To(BeTrue())
	g.Expect(machine.Annotations).To(And(HaveLen(1), HaveKey(v1alpha1.PreDrainHookAnnotation)))
	g.Expect(machinedrain.EndMaintenance(machine)).To(BeFalse())
}

func TestRemediation(t *testing.T) {
	const skip = clusterv1.MachineSkipRemediationAnnotation
	for _, test := range []struct {
		name    string
		machine *clusterv1.Machine
		change  func(*clusterv1.Machine) bool
		changed bool
		want    map[string]string
	}{
		{"sets it", &clusterv1.Machine{}, machinedrain.DisableRemediation, true, map[string]string{skip: v1alpha1.HookOwner}},
		{"sets it once", annotatedMachine(skip, v1alpha1.HookOwner), machinedrain.DisableRemediation, false, map[string]string{skip: v1alpha1.HookOwner}},
		{"does not overwrite a user's", annotatedMachine(skip, ""), machinedrain.DisableRemediation, false, map[string]string{skip: ""}},
		{"removes it", annotatedMachine(skip, v1alpha1.HookOwner), machinedrain.EnableRemediation, true, map[string]string{}},
		{"does not remove a user's", annotatedMachine(skip, ""), machinedrain.EnableRemediation, false, map[string]string{skip: ""}},
		{"removes nothing without it", &clusterv1.Machine{}, machinedrain.EnableRemediation, false, nil},
	} {
		t.Run("M30: skip-remediation: "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(test.change(test.machine)).To(Equal(test.changed))
			g.Expect(test.machine.Annotations).To(Equal(test.want))
		})
	}
}

func annotatedMachine(key, value string) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value}}}
}

func TestWantedStage(t *testing.T) {
	annotated := func(key, value string) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value) }
	}
	deleted := func(annotation string) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) {
			m.DeletionTimestamp, m.Annotations = new(metav1.Now()), map[string]string{annotation: ""}
		}
	}
	allowed := func(m *clusterv1.Machine) {
		m.UID, m.Annotations = "m", map[string]string{clusterv1.UpdateInProgressAnnotation: "", v1alpha1.UpdateAllowedAnnotation: "2026-01-01T00:00:00Z/m"}
	}
	running := func(*clusterv1.Machine) {}
	drained := v1alpha1.MachineDrainPolicySpec{InPlaceUpdates: v1alpha1.InPlaceUpdatesDrain}
	deletedCluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}}
	for _, tc := range []struct {
		name     string
		machine  func(*clusterv1.Machine)
		cluster  *clusterv1.Cluster
		policy   *v1alpha1.MachineDrainPolicySpec
		outdated v1alpha1.NodeMaintenanceStage
		want     v1alpha1.NodeMaintenanceStage
	}{
		{
			"R58: while the Machine is being deleted, also without a policy",
			deleted(v1alpha1.PreDrainHookAnnotation), &clusterv1.Cluster{}, nil, "", v1alpha1.StageDrain,
		},
		{"R58: not for a deleted Machine without the hook", deleted("other"), &clusterv1.Cluster{}, &drained, v1alpha1.StageCordon, ""},
		{"R58: while the Machine requests a stage", annotated(v1alpha1.MachineStageAnnotation, "Cordon"), &clusterv1.Cluster{}, &drained, "", v1alpha1.StageCordon},
		{"R63: not after the policy was deleted", annotated(v1alpha1.MachineStageAnnotation, "Drain"), &clusterv1.Cluster{}, nil, "", ""},
		{"R58: not without the Cluster", annotated(v1alpha1.MachineStageAnnotation, "Drain"), nil, &drained, "", ""},
		{"R58: not while the Cluster is being deleted", annotated(v1alpha1.MachineStageAnnotation, "Drain"), deletedCluster, &drained, "", ""},
		{
			"R58: not if the Machine requests stage Complete",
			annotated(v1alpha1.MachineStageAnnotation, "Complete"), &clusterv1.Cluster{}, &drained, v1alpha1.StageCordon, "",
		},
		{"R58: not for an invalid stage", annotated(v1alpha1.MachineStageAnnotation, "drain"), &clusterv1.Cluster{}, &drained, v1alpha1.StageCordon, ""},
		{"R58: during an in-place update", annotated(clusterv1.UpdateInProgressAnnotation, ""), &clusterv1.Cluster{}, &drained, "", v1alpha1.StageDrain},
		{
			"R63: not during an in-place update that the policy ignores",
			annotated(clusterv1.UpdateInProgressAnnotation, ""), &clusterv1.Cluster{}, &v1alpha1.MachineDrainPolicySpec{}, "", "",
		},
		{"M84: during one that was allowed, also after the policy was deleted", allowed, &clusterv1.Cluster{}, nil, "", v1alpha1.StageCordon},
		{
			"M84: during one that was allowed, also if the policy ignores updates by now",
			allowed, &clusterv1.Cluster{}, &v1alpha1.MachineDrainPolicySpec{}, "", v1alpha1.StageCordon,
		},
		{"R58: not during one that was allowed, without the Cluster", allowed, nil, nil, "", ""},
		{"R58: while a rollout is going to replace the Machine", running, &clusterv1.Cluster{}, &drained, v1alpha1.StageIdle, v1alpha1.StageIdle},
		{"R63: not after the rollout was rolled back", running, &clusterv1.Cluster{}, &drained, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
			tc.machine(machine)
			var policy *v1alpha1.MachineDrainPolicy
			if tc.policy != nil {
				policy = &v1alpha1.MachineDrainPolicy{Spec: *tc.policy}
			}
			if got := machinedrain.WantedStage(machine, tc.cluster, policy, tc.outdated); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestEndFormerDrain(t *testing.T) {
	at := func(second int) string { return after(second).UTC().Format(time.RFC3339) }
	for name, tc := range map[string]struct {
		isInPlace bool
		created   int
		ends      bool
	}{
		"M147: the start of a drain in place from before the creation of the Node does not count":                 {true, 20, true},
		"M147: the start of a drain in place counts when its NodeMaintenance is recreated":                        {true, 2, false},
		"M37: the start of the drain of a deletion counts for a Node that is recreated":                           {false, 20, false},
		"M147: the start of a drain in place counts for a Node whose creation is in the future: a clock is wrong": {true, present + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, m := NewWithT(t), inDeletion("m")
			m.Annotations[v1alpha1.WaitingForTurnAnnotation], m.Annotations[v1alpha1.DrainStartedAnnotation] = at(3), at(4)
			m.Annotations[v1alpha1.VolumeWaitStartedAnnotation] = at(20)
			if tc.isInPlace {
				machinedrain.RequestDrain(after(1))(&m)
			}
			want := m.DeepCopy()
			if tc.ends {
				delete(want.Annotations, v1alpha1.DrainStartedAnnotation)
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(after(tc.created))}}
			g.Expect(machinedrain.EndFormerDrain(node, after(present))(&m)).To(Equal(tc.ends))
			g.Expect(m.Annotations).To(Equal(want.Annotations))
		})
	}
}
