package nodecondition_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

type says = map[corev1.NodeConditionType]string

func TestWanted(t *testing.T) {
	idle := nodecondition.Maintenance{Name: "idle", Stage: v1alpha1.StageIdle}
	cordon := nodecondition.Maintenance{Name: "cordon", Stage: v1alpha1.StageCordon}
	draining := nodecondition.Maintenance{Name: "draining", Stage: v1alpha1.StageDrain}
	drained := nodecondition.Maintenance{Name: "drained", Stage: v1alpha1.StageDrain, Drained: true}
	for _, tc := range []struct {
		name string
		by   []nodecondition.Maintenance
		want says
	}{
		{name: "R37: no conditions without a maintenance", want: says{}},
		{name: "R37: Idle", by: []nodecondition.Maintenance{idle}, want: says{"MaintenancePlanned": "Maintenance is planned by NodeMaintenance idle"}},
		{name: "R37: Cordon", by: []nodecondition.Maintenance{cordon}, want: says{"MaintenanceInProgress": "Under maintenance by NodeMaintenance cordon"}},
		{name: "R37: Drain", by: []nodecondition.Maintenance{draining}, want: says{
			"MaintenanceInProgress": "Under maintenance by NodeMaintenance draining", "DrainInProgress": "Being drained by NodeMaintenance draining",
		}},
		{
			name: "R55: no DrainInProgress while the Node waits because of maxParallelNodes",
			by:   []nodecondition.Maintenance{{Name: "waiting", Stage: v1alpha1.StageDrain, Waiting: true}}, want: says{
				"MaintenanceInProgress": "Under maintenance by NodeMaintenance waiting",
			},
		},
		{name: "R37: DrainInProgress until all maintenances have drained the Node", by: []nodecondition.Maintenance{draining, drained}, want: says{
			"MaintenanceInProgress": "Under maintenance by NodeMaintenances drained, draining", "DrainInProgress": "Being drained by NodeMaintenance draining",
		}},
		{name: "R37: Drained beside MaintenancePlanned", by: []nodecondition.Maintenance{drained, idle}, want: says{
			"MaintenanceInProgress": "Under maintenance by NodeMaintenance drained", "Drained": "Drained by NodeMaintenance drained",
			"MaintenancePlanned": "Maintenance is planned by NodeMaintenance idle",
		}},
		{name: "R37: a maintenance that is being deleted requires no conditions", by: []nodecondition.Maintenance{
			{Name: "a", Stage: v1alpha1.StageComplete}, {Name: "b", Stage: v1alpha1.StageDrain, Ending: true},
		}, want: says{}},
		{name: "R37: names at most five maintenances", by: []nodecondition.Maintenance{
			{Name: "1", Stage: v1alpha1.StageIdle}, {Name: "2", Stage: v1alpha1.StageIdle}, {Name: "3", Stage: v1alpha1.StageIdle},
			{Name: "4", Stage: v1alpha1.StageIdle}, {Name: "5", Stage: v1alpha1.StageIdle}, {Name: "6", Stage: v1alpha1.StageIdle},
		}, want: says{"MaintenancePlanned": "Maintenance is planned by NodeMaintenances 1, 2, 3, 4, 5 and 1 more"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := nodecondition.Wanted(tc.by)
			if len(got) != len(tc.want) {
				t.Errorf("got %v", got)
			}
			for conditionType, message := range tc.want {
				if got[conditionType] != message {
					t.Errorf("%s says %q, want %q", conditionType, got[conditionType], message)
				}
			}
		})
	}
}

func condition(conditionType corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: conditionType, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}
}

func TestChanges(t *testing.T) {
	const ours = v1alpha1.ReasonNodeMaintenance
	for _, tc := range []struct {
		name        string
		present     []corev1.NodeCondition
		wanted      says
		set, remove []corev1.NodeConditionType
	}{
		{name: "R37: sets a missing condition", wanted: says{"Drained": "m"}, set: []corev1.NodeConditionType{"Drained"}},
		{name: "R37: does not write an unchanged condition", present: []corev1.NodeCondition{condition("Drained", "True", ours, "m")}, wanted: says{"Drained": "m"}},
		{
			name: "R37: writes a changed message", present: []corev1.NodeCondition{condition("Drained", "True", ours, "n")}, wanted: says{"Drained": "m"},
			set: []corev1.NodeConditionType{"Drained"},
		},
		{
			name: "R37: removes a condition that no maintenance requires", present: []corev1.NodeCondition{condition("Drained", "True", ours, "m")},
			remove: []corev1.NodeConditionType{"Drained"},
		},
		{
			name:    "R37: does not change the conditions of other actors",
			present: []corev1.NodeCondition{condition("Drained", "True", "kubectl", "m"), condition("Ready", "True", ours, "m")},
		},
		{
			name: "R37: accepts the same condition of another actor", present: []corev1.NodeCondition{condition("Drained", "True", "kubectl", "n")},
			wanted: says{"Drained": "m"},
		},
		{
			name: "R37: overwrites a condition of another actor that is False", present: []corev1.NodeCondition{condition("Drained", "False", "kubectl", "m")},
			wanted: says{"Drained": "m"}, set: []corev1.NodeConditionType{"Drained"},
		},
		{
			name: "R37: replaces DrainInProgress by Drained", present: []corev1.NodeCondition{condition("DrainInProgress", "True", ours, "m")},
			wanted: says{"Drained": "m"},
			set:    []corev1.NodeConditionType{"Drained"}, remove: []corev1.NodeConditionType{"DrainInProgress"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set, remove := nodecondition.Changes(tc.present, tc.wanted, now)
			if len(set) != len(tc.set) || len(remove) != len(tc.remove) {
				t.Fatalf("sets %v, removes %v", set, remove)
			}
			for i := range set {
				if set[i].Type != tc.set[i] || set[i].Status != corev1.ConditionTrue || set[i].Reason != ours {
					t.Errorf("sets %v", set[i])
				}
			}
			for i := range remove {
				if remove[i] != tc.remove[i] {
					t.Errorf("removes %v", remove)
				}
			}
		})
	}
	t.Run("R37: keeps the transition time when only the message changes", func(t *testing.T) {
		present := condition("Drained", "True", ours, "before")
		set, _ := nodecondition.Changes([]corev1.NodeCondition{present}, says{"Drained": "after"}, now)
		if !set[0].LastTransitionTime.Equal(&present.LastTransitionTime) {
			t.Errorf("transition at %v", set[0].LastTransitionTime)
		}
	})
}

// For random conditions of a Node, applying the changes leaves nothing to change, and conditions of other actors as they were.
func TestChangesSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		status := rapid.SampledFrom([]corev1.ConditionStatus{"True", "False", "Unknown"})
		reason := rapid.SampledFrom([]string{v1alpha1.ReasonNodeMaintenance, "kubectl"})
		message := rapid.SampledFrom([]string{"a", "b"})
		present := map[corev1.NodeConditionType]corev1.NodeCondition{"Ready": condition("Ready", "True", "KubeletReady", "")}
		wanted := says{}
		for _, conditionType := range nodecondition.Types {
			if rapid.Bool().Draw(t, "there") {
				present[conditionType] = condition(conditionType, status.Draw(t, "status"), reason.Draw(t, "reason"), message.Draw(t, "message"))
			}
			if rapid.Bool().Draw(t, "wanted") {
				wanted[conditionType] = message.Draw(t, "wanted message")
			}
		}
		all := func() (conditions []corev1.NodeCondition) {
			for _, each := range present {
				conditions = append(conditions, each)
			}
			return conditions
		}
		set, remove := nodecondition.Changes(all(), wanted, now)
		for _, each := range set {
			present[each.Type] = each
		}
		for _, each := range remove {
			if present[each].Reason != v1alpha1.ReasonNodeMaintenance {
				t.Fatalf("removes %s of another actor", each)
			}
			delete(present, each)
		}
		if set, remove = nodecondition.Changes(all(), wanted, now.Add(time.Hour)); len(set)+len(remove) > 0 {
			t.Fatalf("still to be set %v, removed %v", set, remove)
		}
		for conditionType := range wanted {
			if present[conditionType].Status != corev1.ConditionTrue {
				t.Fatalf("%s isn't True", conditionType)
			}
		}
		if nodecondition.HasMaintenanceConditions(all()) && len(wanted) == 0 {
			t.Fatal("a condition of ours is left over")
		}
	})
}

func TestSame(t *testing.T) {
	before := []corev1.NodeCondition{condition("Ready", "True", "KubeletReady", ""), condition("Drained", "True", "a", "m")}
	heartbeat := []corev1.NodeCondition{condition("Ready", "False", "KubeletNotReady", "?"), condition("Drained", "True", "a", "m")}
	heartbeat[1].LastHeartbeatTime = metav1.NewTime(now)
	if !nodecondition.SameMaintenanceConditions(before, heartbeat) {
		t.Error("R37: a kubelet's heartbeat counts as a change")
	}
	if nodecondition.SameMaintenanceConditions(before, before[:1]) ||
		nodecondition.SameMaintenanceConditions(before, []corev1.NodeCondition{before[0], condition("Drained", "False", "a", "m")}) {
		t.Error("R37: a change by another actor does not count as a change")
	}
}
