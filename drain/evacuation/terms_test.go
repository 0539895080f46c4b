package evacuation_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// drain returns a NodeMaintenance that started to drain its Nodes at noon.
func drain(change func(*v1alpha1.NodeMaintenance), nodes ...string) v1alpha1.NodeMaintenance {
	m := v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageCordon, StartTimestamp: metav1.NewTime(noon.Add(-time.Hour))}, {Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(noon)}}
	for _, node := range nodes {
		m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: node}})
	}
	change(&m)
	return m
}

func within(seconds int32) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.DrainTimeoutSeconds = &seconds }
}

func overriding(m *v1alpha1.NodeMaintenance) {
	m.Spec.Evacuation.UnhealthyBudget = v1alpha1.UnhealthyBudgetOverride
}

func unordered(m *v1alpha1.NodeMaintenance) {
	m.Spec.Evacuation.StatefulSetPods = v1alpha1.StatefulSetPodsUnordered
}

func ofPaused(m *v1alpha1.NodeMaintenance) { m.Name = "of-paused" }

func completed(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageComplete }

func deleted(m *v1alpha1.NodeMaintenance) {
	m.DeletionTimestamp, m.Finalizers = &metav1.Time{Time: noon}, []string{v1alpha1.MaintenanceCompletionFinalizer}
}

func isOfPaused(m *v1alpha1.NodeMaintenance) bool { return m.Name == "of-paused" }

func unlimited(*v1alpha1.NodeMaintenance) {}

func TestTerms(t *testing.T) {
	type list []v1alpha1.NodeMaintenance
	for _, test := range []struct {
		name string
		all  list
		want string // for Node "one"
	}{
		{"E14: the drain timeout counts from the start of the stage", list{drain(within(600), "one")}, "until 10m0s"},
		{"E14: a drain without a timeout never times out", list{drain(unlimited, "one"), drain(within(0), "one")}, "never"},
		{"E14: the earliest of several drain timeouts applies", list{drain(unlimited, "one"), drain(within(900), "one"), drain(within(600), "two", "one"), drain(within(1200), "one")}, "until 10m0s"},
		{"E14: drains of other Nodes don't apply", list{drain(within(600), "two"), drain(unlimited, "one")}, "never"},
		{"E14: NodeMaintenances in other stages don't apply", list{drain(func(m *v1alpha1.NodeMaintenance) { within(600)(m); m.Spec.Stage = v1alpha1.StageCordon }, "one")}, "never"},
		{"E14: NodeMaintenances that are being deleted don't apply", list{drain(func(m *v1alpha1.NodeMaintenance) { within(600)(m); m.DeletionTimestamp = &metav1.Time{Time: noon} }, "one")}, "never"},
		{"E14: a drain that has not started does not time out", list{drain(func(m *v1alpha1.NodeMaintenance) { within(600)(m); m.Status.StageStatuses = nil }, "one")}, "never"},
		{"E21: budgets are overridden if all drains override them", list{drain(overriding, "one"), drain(overriding, "one")}, "never, deletes unready"},
		{"E21: budgets are respected if one drain respects them", list{drain(overriding, "one"), drain(unlimited, "one")}, "never"},
		{"E21: budgets are respected regardless of the order of the drains", list{drain(unlimited, "one"), drain(overriding, "one")}, "never"},
		{"E21: drains of other Nodes don't apply", list{drain(unlimited, "two"), drain(overriding, "one")}, "never, deletes unready"},
		{"M16: a drain is paused while its Machine is paused", list{drain(ofPaused, "one")}, "never, suspended"},
		{"M16: a Node is not paused if one of its drains is not paused", list{drain(unlimited, "one"), drain(ofPaused, "one")}, "never"},
		{"M16: the paused drain of another Node doesn't apply", list{drain(ofPaused, "two"), drain(unlimited, "one")}, "never"},
		{"E50: a drain that was completed is suspended", list{drain(completed, "one")}, "never, suspended"},
		{"E50: a drain that was deleted is suspended", list{drain(deleted, "one")}, "never, suspended"},
		{"E50: the completed drain of another Node doesn't apply", list{drain(completed, "two")}, "never"},
		{"E50: a completed drain does not change the terms of another one", list{drain(completed, "one"), drain(overriding, "one"), drain(deleted, "one")}, "never, deletes unready"},
		{"E50: a drain whose completion has ended doesn't apply", list{drain(func(m *v1alpha1.NodeMaintenance) {
			completed(m)
			m.Status.StageStatuses = append(m.Status.StageStatuses, v1alpha1.StageStatus{Name: v1alpha1.StageComplete, StartTimestamp: metav1.NewTime(noon)})
		}, "one")}, "never"},
		{"E50: a deleted drain without the manager's finalizer doesn't apply", list{drain(func(m *v1alpha1.NodeMaintenance) { deleted(m); m.Finalizers = []string{"example.com/other"} }, "one")}, "never"},
		{"E30: Pods of StatefulSets are evicted in any order if all drains are unordered", list{drain(unordered, "one"), drain(unordered, "one")}, "never, unordered"},
		{"E30: Pods of StatefulSets are evicted in order if one drain is ordered", list{drain(unordered, "one"), drain(unlimited, "one")}, "never"},
		{"E21: budgets are respected without a drain", nil, "never"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, terms := range []evacuation.Terms{evacuation.TermsOn("one", test.all, isOfPaused), evacuation.TermsByNode(test.all, isOfPaused)["one"]} {
				if got := describe(terms); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			}
		})
	}
}

func describe(terms evacuation.Terms) string {
	text := "never"
	if terms.DrainEnds != nil {
		text = fmt.Sprintf("until %s", terms.DrainEnds.Sub(noon))
	}
	if terms.Unordered {
		text += ", unordered"
	}
	if terms.DeletesUnready {
		text += ", deletes unready"
	}
	if terms.Suspended {
		text += ", suspended"
	}
	return text
}

func TestTermsChanged(t *testing.T) {
	of := func(m v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance { return &m }
	for _, test := range []struct {
		name          string
		before, after *v1alpha1.NodeMaintenance
		want          bool
	}{
		{"a drain begins", nil, of(drain(unlimited, "one")), true},
		{"a drain ends", of(drain(unlimited, "one")), nil, true},
		{"E14: a timeout is set while it runs", of(drain(unlimited, "one")), of(drain(within(600), "one")), true},
		{"another Node is selected", of(drain(unlimited, "one")), of(drain(unlimited, "two")), true},
		{"M89: the drain continues in another management cluster", of(drain(unlimited, "one")), of(drain(func(m *v1alpha1.NodeMaintenance) {
			m.Annotations = map[string]string{v1alpha1.OwnerManagementClusterAnnotation: "here"}
		}, "one")), true},
		{"only the progress changes", of(drain(within(600), "one")), of(drain(func(m *v1alpha1.NodeMaintenance) { within(600)(m); m.Status.NodeStatuses[0].PodsEvacuating = 3 }, "one")), false},
		{"E50: a maintenance that does not drain is completed", of(drain(func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon }, "one")), of(drain(completed, "one")), true},
		{"nothing is drained before or after", of(drain(func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageIdle }, "one")), nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := evacuation.TermsChanged(test.before, test.after); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTermsRest(t *testing.T) {
	for _, test := range []struct {
		name  string
		terms evacuation.Terms
		given *given
		want  bool
	}{
		{"M16: defers an Evacuation whose instigators are paused NodeMaintenances only", evacuation.Terms{Suspended: true}, anEvacuation(), true},
		{"M16: does not defer an Evacuation with another instigator", evacuation.Terms{Suspended: true}, anEvacuation().heldBy(ours, theirs), false},
		{"M16: does not defer an Evacuation of another instigator only", evacuation.Terms{Suspended: true}, anEvacuation().heldBy(theirs), false},
		{"M16: defers despite foreign finalizers", evacuation.Terms{Suspended: true}, anEvacuation().heldBy(foreign, ours), true},
		{"M16: does not defer when no NodeMaintenance is paused", evacuation.Terms{}, anEvacuation(), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.terms.DefersEvacuation(test.given.Evacuation); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
