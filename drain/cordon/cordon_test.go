package cordon_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
)

func node(unschedulable bool) *corev1.Node {
	node := &corev1.Node{}
	node.Spec.Unschedulable = unschedulable
	return node
}

func TestCordonAndRestore(t *testing.T) {
	for _, tc := range []struct {
		name      string
		found     bool
		meanwhile func(*corev1.Node)
		restore   func(*corev1.Node) bool
		want      bool
	}{
		{name: "R19: makes a Node schedulable that only NodeMaintenances cordoned", restore: cordon.Restore},
		{name: "R19: keeps a Node cordoned that a user had cordoned", restore: cordon.Restore, found: true, want: true},
		{
			name: "R16: does not cordon a Node that another actor has uncordoned", restore: cordon.Restore,
			meanwhile: func(n *corev1.Node) { n.Spec.Unschedulable = false },
		},
		{
			name: "R100: makes a Node schedulable that another actor had cordoned, and made schedulable during its maintenance", found: true, restore: cordon.Restore,
			meanwhile: func(n *corev1.Node) { n.Spec.Unschedulable = false; cordon.Apply(n) },
		},
		{
			name: "R19: does not uncordon a Node with an invalid record", restore: cordon.Restore, want: true,
			meanwhile: func(n *corev1.Node) { n.Annotations[v1alpha1.NodeOriginAnnotation] = "?" },
		},
		{
			name: "R19: makes a Node schedulable unconditionally from Idle to Complete", found: true, restore: cordon.Uncordon,
			meanwhile: func(n *corev1.Node) { n.Annotations = nil },
		},
		{
			name: "R19: restores the recorded state from Idle to Complete when the manager was killed before it wrote the status", found: true, restore: cordon.Uncordon,
			want: true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(tc.found)
			if !cordon.Apply(n) || !n.Spec.Unschedulable {
				t.Fatal("not cordoned")
			}
			if tc.meanwhile != nil {
				tc.meanwhile(n)
			}
			tc.restore(n)
			if n.Spec.Unschedulable != tc.want {
				t.Errorf("unschedulable is %t, want %t", n.Spec.Unschedulable, tc.want)
			}
			if _, recorded := n.Annotations[v1alpha1.NodeOriginAnnotation]; recorded {
				t.Error("the record was not removed")
			}
		})
	}
	t.Run("R16: does not change a Node without a record", func(t *testing.T) {
		n := node(true)
		if cordon.Restore(n) || !n.Spec.Unschedulable {
			t.Error("uncordoned a Node that no NodeMaintenance cordoned")
		}
	})
}

func TestRestoresUnconditionally(t *testing.T) {
	for _, tc := range []struct {
		name    string
		started []v1alpha1.NodeMaintenanceStage
		machine string
		want    bool
	}{
		{
			name:    "R19: restores unconditionally for a user's NodeMaintenance that went from Idle to Complete",
			started: []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle}, want: true,
		},
		{
			name: "R48: restores only what is recorded for a NodeMaintenance that serves a Machine", started: []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle},
			machine: "default/m1",
		},
		{
			name:    "R19: restores only what is recorded for a NodeMaintenance that was in stage Cordon",
			started: []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle, v1alpha1.StageCordon},
		},
		{name: "R19: restores only what is recorded for a NodeMaintenance that was created in stage Complete"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{}
			for _, stage := range tc.started {
				m.Status.StageStatuses = append(m.Status.StageStatuses, v1alpha1.StageStatus{Name: stage})
			}
			if tc.machine != "" {
				m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: tc.machine}
			}
			if got := cordon.RestoresUnconditionally(m); got != tc.want {
				t.Errorf("RestoresUnconditionally is %t, want %t", got, tc.want)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	deleted := metav1.Now()
	for _, tc := range []struct {
		name    string
		stage   v1alpha1.NodeMaintenanceStage
		deleted *metav1.Time
		machine string
		ended   bool
		waits   bool
		want    bool
	}{
		{
			name: "R12: one that has ended and that a finalizer of another owner keeps does not", stage: v1alpha1.StageDrain, deleted: &deleted, machine: "default/m1",
			ended: true,
		},
		{name: "R16: Idle cordons nothing", stage: v1alpha1.StageIdle},
		{name: "R16: Cordon holds", stage: v1alpha1.StageCordon, want: true},
		{name: "R16: Drain holds", stage: v1alpha1.StageDrain, want: true},
		{name: "R16: Complete doesn't", stage: v1alpha1.StageComplete},
		{name: "R12: one that is being deleted completes", stage: v1alpha1.StageDrain, deleted: &deleted},
		{
			name: "R12: holds the Node of a Machine while its NodeMaintenance is recreated", stage: v1alpha1.StageDrain, deleted: &deleted, machine: "default/m1",
			want: true,
		},
		{name: "M132: leaves the Node of a Machine schedulable that waits for a turn", stage: v1alpha1.StageCordon, machine: "default/m1", waits: true},
		{name: "M132: holds it when the drain begins", stage: v1alpha1.StageDrain, machine: "default/m1", waits: true, want: true},
		{name: "M132: holds the Nodes of a user, whose annotation means nothing", stage: v1alpha1.StageCordon, waits: true, want: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: tc.stage}}
			m.DeletionTimestamp = tc.deleted
			if !tc.ended {
				m.Finalizers = []string{v1alpha1.MaintenanceCompletionFinalizer}
			}
			if tc.machine != "" {
				m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: tc.machine}
			}
			if tc.waits {
				metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.WaitingNodeAnnotation, string(v1alpha1.WaitingNodesSchedulable))
			}
			if got := cordon.Holds(m); got != tc.want {
				t.Errorf("Holds is %t, want %t", got, tc.want)
			}
		})
	}
}

// TestRestoreIsTruthful checks that the last NodeMaintenance that ends restores the state of the Node: it becomes schedulable if it was, or
// if another actor has made it schedulable meanwhile.
func TestRestoreIsTruthful(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		found := rapid.Bool().Draw(t, "found unschedulable")
		n, want := node(found), found
		for range rapid.IntRange(1, 5).Draw(t, "maintenances") {
			cordon.Apply(n)
			if rapid.Bool().Draw(t, "another actor uncordons") {
				n.Spec.Unschedulable, want = false, false
			}
		}
		cordon.Apply(n)
		cordon.Restore(n)
		if n.Spec.Unschedulable != want {
			t.Fatalf("unschedulable is %t, want %t", n.Spec.Unschedulable, want)
		}
		cordon.Apply(n)
		if cordon.Apply(n) {
			t.Fatal("cordoning a cordoned Node is a change")
		}
	})
}
