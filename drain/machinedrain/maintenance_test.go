package machinedrain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
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

func TestMustRecreate(t *testing.T) {
	planned := &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{DrainPlan: []v1alpha1.DrainPlanEntry{{PodPriority: 1000}}}}
	tiers := &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{DrainPlanDefaults: v1alpha1.DrainPlanDefaultsPriorityTiers}}
	of := func(policy *v1alpha1.MachineDrainPolicy, stage v1alpha1.NodeMaintenanceStage) *v1alpha1.NodeMaintenance {
		return machinedrain.Maintenance(machinedrain.Request{Machine: &clusterv1.Machine{}, Node: &corev1.Node{}, Policy: policy, Stage: stage})
	}
	for name, tc := range map[string]struct {
		present, desired *v1alpha1.NodeMaintenance
		want             bool
	}{
		"M125: an announcement with another plan is recreated for the drain":     {of(nil, v1alpha1.StageIdle), of(planned, v1alpha1.StageDrain), true},
		"M125: also with other defaults, and while the Machine waits for a turn": {of(planned, v1alpha1.StageIdle), of(tiers, v1alpha1.StageCordon), true},
		"M125: one with the same plan is continued": {
			of(planned, v1alpha1.StageIdle), of(planned.DeepCopy(), v1alpha1.StageDrain), false,
		},
		"M125: one that still only announces is kept":                {of(nil, v1alpha1.StageIdle), of(planned, v1alpha1.StageIdle), false},
		"M125: a NodeMaintenance that has cordoned the Node is kept": {of(nil, v1alpha1.StageCordon), of(planned, v1alpha1.StageDrain), false},
		"M125: one that drains the Node is kept":                     {of(nil, v1alpha1.StageDrain), of(planned, v1alpha1.StageDrain), false},
		"M125: one that does not exist is created":                   {nil, of(planned, v1alpha1.StageDrain), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.MustRecreate(tc.present, tc.desired); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestUpdateOfParallelNodes(t *testing.T) {
	t.Run("M13: a drain timeout reaches a NodeMaintenance in which a user has set maxParallelNodes, which excludes it", func(t *testing.T) {
		g, machine := NewWithT(t), &clusterv1.Machine{}
		present := machinedrain.Maintenance(machinedrain.Request{Machine: machine, Node: &corev1.Node{}})
		present.Spec.MaxParallelNodes, present.Spec.WaitingNodes = ptr.To(intstr.FromInt32(1)), v1alpha1.WaitingNodesSchedulable
		machine.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](600)
		desired := machinedrain.Maintenance(machinedrain.Request{Machine: machine, Node: &corev1.Node{}})
		g.Expect(machinedrain.Update(present, desired)).To(BeTrue())
		g.Expect(present.Spec).To(Equal(desired.Spec))
		g.Expect(machinedrain.Update(present, desired)).To(BeFalse())
	})
}

func TestUpdateOfWaitingNode(t *testing.T) {
	t.Run("M132: the Node of a Machine that waits for a turn becomes schedulable and is cordoned again", func(t *testing.T) {
		g, machine := NewWithT(t), &clusterv1.Machine{}
		of := func(stage v1alpha1.NodeMaintenanceStage, schedulable bool) *v1alpha1.NodeMaintenance {
			return machinedrain.Maintenance(machinedrain.Request{Machine: machine, Node: &corev1.Node{}, Stage: stage, Schedulable: schedulable})
		}
		present := of(v1alpha1.StageCordon, false)
		g.Expect(present.StaysSchedulable()).To(BeFalse())
		for _, schedulable := range []bool{true, false, true} {
			g.Expect(machinedrain.Update(present, of(v1alpha1.StageCordon, schedulable))).To(BeTrue())
			g.Expect(present.StaysSchedulable()).To(Equal(schedulable))
			g.Expect(machinedrain.Update(present, of(v1alpha1.StageCordon, schedulable))).To(BeFalse())
		}
		present.Spec.Stage = v1alpha1.StageDrain
		g.Expect(present.StaysSchedulable()).To(BeFalse())
		g.Expect(machinedrain.Update(present, of(v1alpha1.StageDrain, false))).To(BeTrue())
		g.Expect(present.Annotations).NotTo(HaveKey(v1alpha1.WaitingNodeAnnotation))
	})
}

func TestMaintenanceReason(t *testing.T) {
	g := NewWithT(t)
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "m", Annotations: map[string]string{v1alpha1.MachineStageReasonAnnotation: "new disk"},
	}}
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

func TestMaintenanceStart(t *testing.T) {
	const recorded = "2026-01-01T00:01:00Z"
	at := after(60)
	for _, tc := range []struct {
		name     string
		started  *int // start of stage Drain of the present NodeMaintenance
		timeout  int32
		recorded string
		present  string
		want     string
	}{
		{name: "M97: a recreated NodeMaintenance counts from the recorded start of the drain", started: ptr.To(90), timeout: 600, recorded: recorded, want: recorded},
		{name: "M97: also before it has started", timeout: 600, recorded: recorded, want: recorded},
		{name: "M97: a NodeMaintenance counts from its own start if that is recorded", started: ptr.To(60), timeout: 600, recorded: recorded},
		{name: "M97: a NodeMaintenance whose drain was resumed counts from the resumption", started: ptr.To(30), timeout: 600, recorded: recorded, want: recorded},
		{name: "M97: keeps the recorded start", started: ptr.To(90), timeout: 600, recorded: recorded, present: recorded, want: recorded},
		{name: "M97: restores the recorded start", started: ptr.To(90), timeout: 600, recorded: recorded, present: "2020-01-01T00:00:00Z", want: recorded},
		{name: "M97: removes a start that the Machine does not record", started: ptr.To(90), timeout: 600, present: recorded},
		{name: "M97: removes the start with the timeout", started: ptr.To(90), recorded: recorded, present: recorded},
		{
			name: "M97: a NodeMaintenance of a former deletion, before clusterctl move, counts from the deletion", started: ptr.To(-2100), timeout: 600,
			want: after(0).Format(time.RFC3339),
		},
		{name: "M97: ignores an invalid record", started: ptr.To(90), timeout: 600, recorded: "soon"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			owner := machine(isDeleted, timeouts(tc.timeout, 0), annotated(v1alpha1.DrainStartedAnnotation, tc.recorded))
			present := machinedrain.Maintenance(machinedrain.Request{Machine: owner, Node: &corev1.Node{}})
			present.CreationTimestamp = metav1.NewTime(at.Add(time.Second))
			if delete(present.Annotations, v1alpha1.DrainStartedAnnotation); tc.present != "" {
				present.Annotations[v1alpha1.DrainStartedAnnotation] = tc.present
			}
			if tc.started != nil {
				present.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(after(*tc.started))}}
			}
			desired := machinedrain.Maintenance(machinedrain.Request{Machine: owner, Node: &corev1.Node{}, Present: present})
			g.Expect(machinedrain.Update(present, desired)).To(Equal(tc.present != tc.want))
			g.Expect(present.Annotations[v1alpha1.DrainStartedAnnotation]).To(Equal(tc.want))
			if tc.started != nil && tc.timeout > 0 {
				start := *present.DrainStart()
				g.Expect(start).To(BeTemporally("==", *machinedrain.ClockOf(owner, read(present), after(100)).Drain),
					"Machine and NodeMaintenance count from the same time")
			}
		})
	}
}

// TestResumedStart: a Machine was drained in place from second 60 to 70, and Pods must be drained again since second 500.
func TestResumedStart(t *testing.T) { // M94, M97
	at := func(second int) string { return after(second).Format(time.RFC3339) }
	present := draining(60)
	present.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(after(500)),
	}}
	owner := machine(isDeleted, timeouts(60, 0), annotated(v1alpha1.DrainStartedAnnotation, at(60), v1alpha1.DrainEndedAnnotation, at(70)))
	update := func() {
		machinedrain.Update(present, machinedrain.Maintenance(machinedrain.Request{Machine: owner, Node: &corev1.Node{}}))
	}
	g := NewWithT(t)
	update()
	g.Expect(*present.DrainStart()).To(BeTemporally("==", after(500)), "before the Machine records it")
	g.Expect(machinedrain.ClockIn(machinedrain.Situation{Maintenance: read(present), IsResumed: true}, owner, after(502)).Record(owner)).To(BeTrue())
	update()
	g.Expect(*present.DrainStart()).To(BeTemporally("==", after(492)), "the ten seconds of the drain before count")
	g.Expect(*machinedrain.ClockOf(owner, read(present), after(600)).Drain).To(BeTemporally("==", after(492)))

	owner = machine(isDeleted, timeouts(60, 0), annotated(v1alpha1.DrainStartedAnnotation, at(60)))
	update()
	g.Expect(*present.DrainStart()).To(BeTemporally("==", after(60)), "the Machine has not observed the end of the drain")

	delete(present.Annotations, v1alpha1.DrainStartedAnnotation)
	g.Expect(*machinedrain.ClockOf(machine(isDeleted, timeouts(60, 0)), read(present), after(600)).Drain).
		To(BeTemporally("==", after(500)), "a timeout that is set late")
}
