package rollout_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rollout"
)

var began = time.Date(2026, time.May, 4, 10, 0, 0, 0, time.UTC)

func at(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }

func outdated(name string) rollout.Machine {
	return rollout.Machine{Name: name, Policy: v1alpha1.OutdatedNodesCordon, Outdated: true, Available: true, LastProgress: began}
}

func updated(name string, available bool, progress time.Time) rollout.Machine {
	return rollout.Machine{Name: name, Policy: v1alpha1.OutdatedNodesCordon, Available: available, LastProgress: progress}
}

func rolling(machines ...rollout.Machine) rollout.Rollout {
	return rollout.Rollout{RollingUpdate: true, Machines: machines}
}

func with(r rollout.Rollout, change func(*rollout.Rollout)) rollout.Rollout {
	change(&r)
	return r
}

func policy(p v1alpha1.OutdatedNodesPolicy, machines ...rollout.Machine) []rollout.Machine {
	for i := range machines {
		machines[i].Policy = p
	}
	return machines
}

func TestDecide(t *testing.T) {
	type stages = map[string]v1alpha1.NodeMaintenanceStage
	goingWell := rolling(outdated("a"), outdated("b"), updated("new", true, at(1)))
	for _, test := range []struct {
		name    string
		rollout rollout.Rollout
		now     time.Time
		want    stages
		until   time.Time
	}{
		{"M24: cordons outdated Nodes once an updated Machine is available", goingWell, at(2), stages{"a": "Cordon", "b": "Cordon"}, at(11)},
		{
			"M24: announces outdated Nodes until an updated Machine is available",
			rolling(outdated("a"), updated("new", false, at(1))), at(2), stages{"a": "Idle"}, time.Time{},
		},
		{
			"M24: does not count an updated Machine that is being deleted",
			rolling(outdated("a"), deleting(updated("new", true, at(1)))), at(2), stages{"a": "Idle"}, time.Time{},
		},
		{
			"M169: does not count a Machine of an outdated MachineSet as updated, although its own condition does not say so yet",
			rolling(ofSet("old", outdated("a")), ofSet("old", updated("b", true, began))), at(2), stages{"a": "Idle"}, time.Time{},
		},
		{
			"M169: counts an updated Machine of another MachineSet",
			rolling(ofSet("old", outdated("a")), ofSet("old", updated("b", true, began)), ofSet("new", updated("c", true, at(1)))), at(2),
			stages{"a": "Cordon"}, at(11),
		},
		{
			"M169: does not count a paused Machine as updated, since its condition may be old",
			rolling(outdated("a"), paused(updated("b", true, at(1)))), at(2), stages{"a": "Idle"}, time.Time{},
		},
		{
			"M169: cordons after a rollback although a paused Machine of the updated MachineSet is still said to be outdated",
			rolling(ofSet("old", paused(outdated("a"))), ofSet("old", updated("b", true, at(1))), ofSet("new", outdated("c"))), at(2),
			stages{"a": "Cordon", "c": "Cordon"}, at(11), // a stays as it is while it is paused
		},
		{
			"M24: announces outdated Nodes with strategy OnDelete",
			with(goingWell, func(r *rollout.Rollout) { r.RollingUpdate = false }), at(2), stages{"a": "Idle", "b": "Idle"}, time.Time{},
		},
		{
			"M24: Announce never cordons", rolling(policy(v1alpha1.OutdatedNodesAnnounce, outdated("a"), updated("new", true, at(1)))...), at(2), stages{"a": "Idle"},
			time.Time{},
		},
		{
			"M24: Ignore requests no NodeMaintenance",
			rolling(policy(v1alpha1.OutdatedNodesIgnore, outdated("a"), updated("new", true, at(1)))...), at(2), stages{}, time.Time{},
		},
		{"M24: requests no NodeMaintenance without a policy", rolling(policy("", outdated("a"), updated("new", true, at(1)))...), at(2), stages{}, time.Time{}},
		{"M24: only announces Nodes after ten minutes without progress", goingWell, at(11), stages{"a": "Idle", "b": "Idle"}, time.Time{}},
		{
			"M24: counts the deletion of a Machine as progress",
			rolling(outdated("a"), deleting(progress(outdated("b"), at(9))), updated("new", true, at(1))), at(18), stages{"a": "Cordon"}, at(19),
		},
		{
			"M24: cordons Nodes again when the rollout makes progress again",
			rolling(outdated("a"), updated("new", true, at(1)), updated("newer", false, at(30))), at(31), stages{"a": "Cordon"}, at(40),
		},
		{"M25: withdraws the NodeMaintenances of a paused rollout", with(goingWell, func(r *rollout.Rollout) { r.Paused = true }), at(2), stages{}, time.Time{}},
		{
			"M25: withdraws the NodeMaintenances of Machines that are up to date after a rollback",
			rolling(updated("a", true, at(3)), updated("b", true, at(3)), outdated("new")), at(4), stages{"new": "Cordon"}, at(13),
		},
		{
			"M25: withdraws the NodeMaintenances of a MachineDeployment that is being deleted",
			with(goingWell, func(r *rollout.Rollout) { r.Deleting = true }), at(2), stages{}, time.Time{},
		},
		{"M24: leaves out a Machine that is being deleted", rolling(deleting(outdated("a")), updated("new", true, at(1))), at(2), stages{}, time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := rollout.Decide(test.rollout, test.now)
			if !maps.Equal(got.Stages, test.want) || !got.Until.Equal(test.until) {
				t.Errorf("got  %v until %v\nwant %v until %v", got.Stages, got.Until, test.want, test.until)
			}
		})
	}
}

func deleting(m rollout.Machine) rollout.Machine {
	m.Deleting = true
	return m
}

func paused(m rollout.Machine) rollout.Machine {
	m.Paused = true
	return m
}

func ofSet(machineSet string, m rollout.Machine) rollout.Machine {
	m.MachineSet = machineSet
	return m
}

func progress(m rollout.Machine, at time.Time) rollout.Machine {
	m.LastProgress = at
	return m
}

// TestCordonIsCareful checks for random rollouts that only Nodes of outdated Machines are cordoned, and none without an available updated
// Machine or without recent progress, and that a decision changes when it expires.
func TestCordonIsCareful(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rollout.Rollout{Paused: rapid.Bool().Draw(t, "paused"), Deleting: rapid.Bool().Draw(t, "deleting"), RollingUpdate: rapid.Bool().Draw(t, "rolling")}
		byName := map[string]rollout.Machine{}
		for i := range rapid.IntRange(0, 6).Draw(t, "Machines") {
			m := rollout.Machine{
				Name: string(rune('a' + i)), MachineSet: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "MachineSet"),
				Policy:   rapid.SampledFrom([]v1alpha1.OutdatedNodesPolicy{"", "Ignore", "Announce", "Cordon", "Cordon"}).Draw(t, "policy"),
				Outdated: rapid.Bool().Draw(t, "outdated"), Available: rapid.Bool().Draw(t, "available"), Deleting: rapid.Bool().Draw(t, "is deleted"),
				Paused:       rapid.Bool().Draw(t, "is paused"),
				LastProgress: at(rapid.IntRange(0, 30).Draw(t, "progress")),
			}
			r.Machines, byName[m.Name] = append(r.Machines, m), m
		}
		now := at(rapid.IntRange(0, 45).Draw(t, "now"))
		d := rollout.Decide(r, now)
		room, last := false, time.Time{}
		for _, m := range r.Machines {
			isOutdated := slices.ContainsFunc(r.Machines, func(of rollout.Machine) bool {
				return of.Outdated && !of.Paused && of.MachineSet == m.MachineSet && m.MachineSet != ""
			})
			room = room || !m.Outdated && !m.Paused && !isOutdated && m.Available && !m.Deleting
			if m.LastProgress.After(last) {
				last = m.LastProgress
			}
		}
		for name, stage := range d.Stages {
			m := byName[name]
			if !m.Outdated || m.Deleting || r.Paused || r.Deleting || m.Policy == "" || m.Policy == v1alpha1.OutdatedNodesIgnore {
				t.Fatalf("%s is in stage %s: %+v", name, stage, m)
			}
			if stage == v1alpha1.StageCordon && (!room || !r.RollingUpdate || m.Policy != v1alpha1.OutdatedNodesCordon || now.Sub(last) >= rollout.ProgressTimeout) {
				t.Fatalf("%s is cordoned: %+v", name, r)
			}
		}
		if !d.Until.IsZero() {
			for name, stage := range rollout.Decide(r, d.Until).Stages {
				if stage == v1alpha1.StageCordon {
					t.Fatalf("%s is still cordoned at %v", name, d.Until)
				}
			}
		}
	})
}

func TestOf(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason string, minutes int) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(at(minutes))}
	}
	machine := func(conditions ...metav1.Condition) clusterv1.Machine {
		return clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: metav1.NewTime(began)},
			Status:     clusterv1.MachineStatus{Conditions: conditions, NodeRef: clusterv1.MachineNodeReference{Name: "n"}},
		}
	}
	available := condition(clusterv1.MachineAvailableCondition, "True", "Available", 5)
	ofMachineSet, inPlace := machine(available), machine(available)
	ofMachineSet.Labels = map[string]string{clusterv1.MachineDeploymentUniqueLabel: "old"}
	inPlace.Labels, inPlace.Annotations = ofMachineSet.Labels, map[string]string{clusterv1.UpdateInProgressAnnotation: ""}
	isPaused := machine(available)
	isPaused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	for _, test := range []struct {
		name    string
		machine clusterv1.Machine
		want    rollout.Machine
	}{
		{
			"M24: reads from condition UpToDate which Machines are outdated", machine(condition("UpToDate", "False", clusterv1.MachineNotUpToDateReason, 3), available),
			rollout.Machine{Outdated: true, Available: true, LastProgress: at(3)},
		},
		{
			"M24: does not count a Machine that is updated in place as outdated",
			machine(condition("UpToDate", "False", clusterv1.MachineUpToDateUpdatingReason, 3)), rollout.Machine{LastProgress: at(3)},
		},
		{"M24: does not count a Machine without conditions as outdated", machine(), rollout.Machine{LastProgress: began}},
		{
			"M24: counts an updated Machine that becomes available as progress",
			machine(condition("UpToDate", "True", "UpToDate", 0), available), rollout.Machine{Available: true, LastProgress: at(5)},
		},
		{"M169: knows the MachineSet of a Machine", ofMachineSet, rollout.Machine{MachineSet: "old", Available: true, LastProgress: at(5)}},
		{"M169: knows whether a Machine is paused", isPaused, rollout.Machine{Paused: true, Available: true, LastProgress: at(5)}},
		{
			"M169: the condition of a Machine that is updated in place may be about its former MachineSet", inPlace,
			rollout.Machine{Available: true, LastProgress: at(5)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := rollout.Observe(&clusterv1.Cluster{}, &clusterv1.MachineDeployment{}, []clusterv1.Machine{test.machine},
				func(*clusterv1.Machine) *v1alpha1.MachineDrainPolicy { return &v1alpha1.MachineDrainPolicy{} })
			test.want.Name, test.want.Policy = "m", v1alpha1.OutdatedNodesAnnounce
			if len(got.Machines) != 1 || got.Machines[0] != test.want || !got.RollingUpdate || got.Paused || got.Deleting {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	follows := func(p v1alpha1.OutdatedNodesPolicy) *v1alpha1.MachineDrainPolicy {
		return &v1alpha1.MachineDrainPolicy{Spec: v1alpha1.MachineDrainPolicySpec{Rollout: v1alpha1.RolloutPolicy{OutdatedNodes: p}}}
	}
	withoutNode := machine()
	withoutNode.Status.NodeRef = clusterv1.MachineNodeReference{}
	for _, test := range []struct {
		name    string
		machine clusterv1.Machine
		policy  *v1alpha1.MachineDrainPolicy
		want    v1alpha1.OutdatedNodesPolicy
	}{
		{"M24: takes rollout.outdatedNodes from the policy", machine(), follows(v1alpha1.OutdatedNodesCordon), v1alpha1.OutdatedNodesCordon},
		{"M24: announces outdated Nodes by default", machine(), follows(""), v1alpha1.OutdatedNodesAnnounce},
		{"M24: does nothing without a policy", machine(), nil, ""},
		{"M24: does nothing for a Machine without a Node", withoutNode, follows(v1alpha1.OutdatedNodesCordon), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := rollout.Observe(&clusterv1.Cluster{}, &clusterv1.MachineDeployment{}, []clusterv1.Machine{test.machine},
				func(*clusterv1.Machine) *v1alpha1.MachineDrainPolicy { return test.policy })
			if got.Machines[0].Policy != test.want {
				t.Errorf("got %q, want %q", got.Machines[0].Policy, test.want)
			}
		})
	}
	t.Run("M25: a MachineDeployment is paused by its annotation or its spec", func(t *testing.T) {
		annotated := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{clusterv1.PausedAnnotation: ""}}}
		said := &clusterv1.MachineDeployment{Spec: clusterv1.MachineDeploymentSpec{Paused: ptr.To(true)}}
		if !rollout.Observe(&clusterv1.Cluster{}, annotated, nil, nil).Paused || !rollout.Observe(&clusterv1.Cluster{}, said, nil, nil).Paused {
			t.Error("not paused")
		}
	})
}
