package machinedrain_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
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
		t.Run("M30: the annotation asks for a stage: "+value[:min(len(value), 10)], func(t *testing.T) {
			g := NewWithT(t)
			stage, problem := machinedrain.StageOf(annotatedMachine(v1alpha1.MachineStageAnnotation, value))
			g.Expect(stage).To(Equal(want))
			if want != "" {
				g.Expect(problem).To(BeEmpty())
				return
			}
			g.Expect(problem).To(ContainSubstring("is not a stage"))
			g.Expect(len(problem)).To(BeNumerically("<", 200), "what a tenant writes is cut")
		})
	}
	t.Run("M30: without the annotation nothing is asked for", func(t *testing.T) {
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
		asked         v1alpha1.NodeMaintenanceStage
		m             *v1alpha1.NodeMaintenance
		status        metav1.ConditionStatus
		reason, words string
	}{
		{"Idle is reached at once", v1alpha1.StageIdle, in(v1alpha1.StageIdle), "True", v1alpha1.ReasonMachineAnnounced, "m-1 announces"},
		{"a NodeMaintenance is on its way", v1alpha1.StageDrain, nil, "False", v1alpha1.ReasonMachineCordoning, "Waiting for the NodeMaintenance"},
		{"the Node isn't cordoned yet", v1alpha1.StageCordon, in(v1alpha1.StageCordon), "False", v1alpha1.ReasonMachineCordoning, "to cordon the Node"},
		{"the Node is cordoned", v1alpha1.StageCordon, in(v1alpha1.StageCordon, v1alpha1.NodeMaintenanceCordoned), "True", v1alpha1.ReasonMachineCordoned, "is cordoned"},
		{"what is reported of an older stage doesn't count", v1alpha1.StageCordon, outdated(in(v1alpha1.StageCordon, v1alpha1.NodeMaintenanceCordoned)), "False", v1alpha1.ReasonMachineCordoning, "to cordon"},
		{"the Node is being drained", v1alpha1.StageDrain, in(v1alpha1.StageDrain), "False", v1alpha1.ReasonMachineDraining, "Drain not completed yet"},
		{"the Node is drained", v1alpha1.StageDrain, in(v1alpha1.StageDrain, v1alpha1.NodeMaintenanceDrained), "True", v1alpha1.ReasonMachineDrained, "is drained"},
		{"a stage never goes back", v1alpha1.StageCordon, in(v1alpha1.StageDrain), "False", v1alpha1.ReasonInvalidStage, "only move forward"},
		{"it is being completed", v1alpha1.StageComplete, in(v1alpha1.StageComplete), "False", v1alpha1.ReasonMachineCompleting, "m-1 to complete"},
		{"it is completed", v1alpha1.StageComplete, nil, "True", v1alpha1.ReasonMachineCompleted, "No maintenance"},
	} {
		t.Run("M30: "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			got := machinedrain.StageCondition(test.asked, test.m)
			g.Expect(got.Type).To(Equal(v1alpha1.MachineNodeMaintenance))
			g.Expect(got.Status).To(Equal(test.status))
			g.Expect(got.Reason).To(Equal(test.reason))
			g.Expect(got.Message).To(ContainSubstring(test.words))
		})
	}
}

func TestKeepFromRemediation(t *testing.T) {
	const skip = clusterv1.MachineSkipRemediationAnnotation
	for _, test := range []struct {
		name          string
		machine       *clusterv1.Machine
		keep, changed bool
		want          map[string]string
	}{
		{"it is set", &clusterv1.Machine{}, true, true, map[string]string{skip: v1alpha1.HookOwner}},
		{"it is set once", annotatedMachine(skip, v1alpha1.HookOwner), true, false, map[string]string{skip: v1alpha1.HookOwner}},
		{"somebody else's is left as it is", annotatedMachine(skip, ""), true, false, map[string]string{skip: ""}},
		{"ours is taken off", annotatedMachine(skip, v1alpha1.HookOwner), false, true, map[string]string{}},
		{"somebody else's stays", annotatedMachine(skip, ""), false, false, map[string]string{skip: ""}},
		{"nothing is there to take off", &clusterv1.Machine{}, false, false, nil},
	} {
		t.Run("M30: skip-remediation: "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(machinedrain.KeepFromRemediation(test.machine, test.keep)).To(Equal(test.changed))
			g.Expect(test.machine.Annotations).To(Equal(test.want))
		})
	}
}

func annotatedMachine(key, value string) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value}}}
}
