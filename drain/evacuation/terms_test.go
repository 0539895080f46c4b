package evacuation_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// drain returns a NodeMaintenance that started to drain its Nodes at noon.
func drain(change func(*v1alpha1.NodeMaintenance), nodes ...string) v1alpha1.NodeMaintenance {
	m := v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes(nodes...)}}
	m.Status.StageStatuses = []v1alpha1.StageStatus{
		{Name: v1alpha1.StageCordon, StartTimestamp: metav1.NewTime(noon.Add(-time.Hour))}, {Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(noon)},
	}
	for _, node := range nodes {
		m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: node}})
	}
	change(&m)
	return m
}

func within(seconds int32) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.DrainTimeoutSeconds = &seconds }
}

// joinedAfter makes the last Node join that long after noon.
func joinedAfter(later time.Duration) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		at := metav1.NewTime(noon.Add(later))
		m.Status.NodeStatuses[len(m.Status.NodeStatuses)-1].DrainStartTime = &at
	}
}

// resumedAfter makes Pods appear that long after noon, after the drain had ended.
func resumedAfter(later time.Duration) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(noon.Add(later)),
		}}
	}
}

func overriding(m *v1alpha1.NodeMaintenance) {
	m.Spec.Evacuation.UnhealthyBudget = v1alpha1.UnhealthyBudgetOverride
}

func signaling(webhook string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) { m.Spec.Evacuation.EvictionWebhooks = []string{webhook} }
}

func ordered(m *v1alpha1.NodeMaintenance) {
	m.Spec.Evacuation.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
}

func ofPaused(m *v1alpha1.NodeMaintenance) { m.Name = "of-paused" }

func cordoning(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon }

func completed(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageComplete }

func deleted(m *v1alpha1.NodeMaintenance) {
	m.DeletionTimestamp, m.Finalizers = &metav1.Time{Time: noon}, []string{v1alpha1.MaintenanceCompletionFinalizer}
}

func isOfPaused(m *v1alpha1.NodeMaintenance) bool { return m.Name == "of-paused" }

func unlimited(*v1alpha1.NodeMaintenance) {}

func skipping(m *v1alpha1.NodeMaintenance) {
	m.Spec.DrainRules = []v1alpha1.DrainRule{{Name: "protected", Behavior: v1alpha1.DrainBehaviorSkip}}
}

func awaiting(m *v1alpha1.NodeMaintenance) {
	m.Spec.DrainRules = []v1alpha1.DrainRule{{Name: "jobs", Behavior: v1alpha1.DrainBehaviorWaitCompleted}}
}

func ofMachine(m *v1alpha1.NodeMaintenance) {
	m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "default/m"}
}

func ofUID(uid string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: uid}
	}
}

// labelled makes a NodeMaintenance select Nodes by the label pool.
func labelled(pool string) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Spec.NodeSelector = v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{MatchExpressions: []v1alpha1.NodeSelectorRequirement{
			{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}},
		}}}}
	}
}

func all(changes ...func(*v1alpha1.NodeMaintenance)) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		for _, change := range changes {
			change(m)
		}
	}
}

func withoutStatus(m *v1alpha1.NodeMaintenance) { m.Status = v1alpha1.NodeMaintenanceStatus{} }

func TestTerms(t *testing.T) {
	type list []v1alpha1.NodeMaintenance
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid", Labels: map[string]string{"pool": "a"}}}
	for _, test := range []struct {
		name string
		all  list
		want string // for a Pod of Node "one"
	}{
		{"E14: the drain timeout counts from the start of the stage", list{drain(within(600), "one")}, "until 10m0s"},
		{"R59: the drain timeout of a Node that joined later counts from then", list{drain(all(within(600), joinedAfter(time.Minute)), "two", "one")}, "until 11m0s"},
		{"R59: a Node never joins before the start of the stage", list{drain(all(within(600), joinedAfter(-time.Minute)), "one")}, "until 10m0s"},
		{
			"R59: each drain of a Node counts from its own start",
			list{drain(all(within(600), joinedAfter(time.Minute)), "one"), drain(within(630), "one")}, "until 10m30s",
		},
		{
			"M94: a drain that resumes after a Node has joined counts from then",
			list{drain(all(within(600), joinedAfter(time.Minute), resumedAfter(2*time.Minute)), "one")}, "until 12m0s",
		},
		{
			"R59: a Node that joins a drain that had resumed has the whole time",
			list{drain(all(within(600), joinedAfter(3*time.Minute), resumedAfter(2*time.Minute)), "one")}, "until 13m0s",
		},
		{"R59: the Node of a Machine never joins later", list{drain(all(within(600), ofMachine, joinedAfter(time.Minute)), "one")}, "until 10m0s"},
		{"R59: a Node that joins has no timeout before its start is recorded", list{drain(all(within(600), labelled("a")))}, "never"},
		{"E14: a drain without a timeout never times out", list{drain(unlimited, "one"), drain(within(0), "one")}, "never"},
		{
			"E14: the earliest of several drain timeouts applies",
			list{drain(unlimited, "one"), drain(within(900), "one"), drain(within(600), "two", "one"), drain(within(1200), "one")}, "until 10m0s",
		},
		{"E14: drains of other Nodes don't apply", list{drain(within(600), "two"), drain(unlimited, "one")}, "never"},
		{"E14: NodeMaintenances in other stages don't apply", list{drain(all(within(600), cordoning), "one"), drain(unlimited, "one")}, "never"},
		{"E14: NodeMaintenances that are being deleted don't apply", list{drain(all(within(600), deleted), "one"), drain(unlimited, "one")}, "never"},
		{"E14: a drain that has not started does not time out", list{drain(all(within(600), withoutStatus), "one")}, "never"},
		{"E21: budgets are overridden if all drains override them", list{drain(overriding, "one"), drain(overriding, "one")}, "never, deletes unready"},
		{"E21: budgets are respected if one drain respects them", list{drain(overriding, "one"), drain(unlimited, "one")}, "never"},
		{"E21: budgets are respected regardless of the order of the drains", list{drain(unlimited, "one"), drain(overriding, "one")}, "never"},
		{"E21: drains of other Nodes don't apply", list{drain(unlimited, "two"), drain(overriding, "one")}, "never, deletes unready"},
		{"E28: Pods of StatefulSets are evicted in order if one drain is ordered", list{drain(ordered, "one"), drain(unlimited, "one")}, "never, ordered"},
		{"E28: Pods of StatefulSets are evicted in any order by default", list{drain(unlimited, "one"), drain(ordered, "two")}, "never"},
		{"E28: the order of a suspended drain doesn't apply", list{drain(all(ordered, ofPaused), "one"), drain(unlimited, "one")}, "never"},
		{"M16: a drain is suspended while its Machine is paused", list{drain(ofPaused, "one")}, "never, suspended"},
		{"M16: a Pod is evacuated if one of its drains is not paused", list{drain(unlimited, "one"), drain(ofPaused, "one")}, "never"},
		{"M16: the drain of another Node doesn't apply", list{drain(ofPaused, "one"), drain(unlimited, "two")}, "never, suspended"},
		{"E58: a Pod that only the paused drain drains is not evacuated", list{drain(ofPaused, "one"), drain(skipping, "one")}, "never, suspended"},
		{"E58: a Pod that only the deleted drain drains is not evacuated", list{drain(deleted, "one"), drain(skipping, "one")}, "never, suspended"},
		{"E58: a Pod that one drain skips and another one drains is evacuated", list{drain(skipping, "one"), drain(unlimited, "one")}, "never"},
		{
			"M124: signals are sent to the webhooks that one of the drains names",
			list{drain(signaling("a"), "one"), drain(unlimited, "one"), drain(signaling("b"), "one")}, "never, signals to [a b]",
		},
		{"M124: drains of other Nodes name no webhooks", list{drain(signaling("a"), "two"), drain(unlimited, "one")}, "never"},
		{"M124: a suspended drain names no webhooks", list{drain(all(ofPaused, signaling("a")), "one"), drain(unlimited, "one")}, "never"},
		{
			"E58: the settings of a suspended drain don't apply to others",
			list{drain(all(ofPaused, within(600)), "one"), drain(overriding, "one")}, "never, deletes unready",
		},
		{"E57: a Pod that no drain evacuates any more is not evacuated", list{drain(skipping, "one")}, "never, suspended"},
		{"E57: a Pod that must complete is not evacuated", list{drain(awaiting, "one")}, "never, suspended"},
		{"E50: a drain that was completed is suspended", list{drain(completed, "one")}, "never, suspended"},
		{"E50: a drain that was deleted is suspended", list{drain(deleted, "one")}, "never, suspended"},
		{
			"E50: a completed drain does not change the terms of another one",
			list{drain(completed, "one"), drain(overriding, "one"), drain(deleted, "one")}, "never, deletes unready",
		},
		{"E57: a drain whose completion has ended evacuates no Pod", list{drain(func(m *v1alpha1.NodeMaintenance) {
			completed(m)
			m.Status.StageStatuses = append(m.Status.StageStatuses, v1alpha1.StageStatus{Name: v1alpha1.StageComplete, StartTimestamp: metav1.NewTime(noon)})
		}, "one")}, "never, suspended"},
		{
			"E57: a deleted drain without the manager's finalizer evacuates no Pod",
			list{drain(func(m *v1alpha1.NodeMaintenance) { deleted(m); m.Finalizers = []string{"example.com/other"} }, "one")}, "never, suspended",
		},
		{"E53, E57: without a NodeMaintenance, for example because it cannot be decoded, no Pod is evacuated", nil, "never, suspended"},
		{"E57: a NodeMaintenance in stage Cordon evacuates no Pod", list{drain(cordoning, "one")}, "never, suspended"},
		{"E57: a drain evacuates Pods before its status lists the Node", list{drain(withoutStatus, "one")}, "never"},
		{"E57: a drain of a Node with another UID evacuates no Pod", list{drain(ofUID("another"), "one")}, "never, suspended"},
		{"E57: a drain of the Node with this UID evacuates Pods", list{drain(ofUID("uid"), "one")}, "never"},
		{"E57: a drain by label evacuates Pods", list{drain(all(labelled("a"), withoutStatus))}, "never"},
		{"E57: a drain that no longer selects the Node evacuates no Pod, although its status lists the Node", list{drain(labelled("b"), "one")}, "never, suspended"},
	} {
		t.Run(test.name, func(t *testing.T) {
			terms := evacuation.DrainersOf(test.all, isOfPaused).On(node).For(rules.Pod{
				Namespace: "default", Name: "web", NamespaceKnown: true, Type: v1alpha1.PodTypeDefault, TypeKnown: true,
			})
			if got := describe(terms); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	t.Run("R59: a Node that was registered again has no timeout before its start is recorded", func(t *testing.T) {
		again := node.DeepCopy()
		again.CreationTimestamp = metav1.NewTime(noon.Add(time.Minute))
		for want, m := range map[string]v1alpha1.NodeMaintenance{
			"never":       drain(all(within(600), joinedAfter(time.Second)), "one"),
			"until 12m0s": drain(all(within(600), joinedAfter(2*time.Minute)), "one"),
			"until 10m0s": drain(all(within(600), ofMachine), "one"),
		} {
			if got := describe(evacuation.DrainersOf(list{m}, nil).On(again).Combined()); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})
	t.Run("M54: no Pod of a Node that does not exist is evacuated", func(t *testing.T) {
		if terms := evacuation.DrainersOf(list{drain(unlimited, "one")}, nil).On(nil).For(rules.Pod{}); !terms.Suspended {
			t.Error("not suspended")
		}
	})
	t.Run("E57: an evacuator that is active is never suspended", func(t *testing.T) {
		if terms := evacuation.DrainersOf(nil, nil).On(node).Combined(); terms.Suspended {
			t.Error("suspended")
		}
	})
}

// continuing makes a NodeMaintenance continue a drain that began that long after noon.
func continuing(start time.Duration) func(*v1alpha1.NodeMaintenance) {
	return func(m *v1alpha1.NodeMaintenance) {
		m.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: noon.Add(start).Format(time.RFC3339)}
	}
}

func TestDrainStartOfTerms(t *testing.T) {
	for _, test := range []struct {
		name string
		m    v1alpha1.NodeMaintenance
		want time.Duration
	}{
		{"of a drain", drain(unlimited, "one"), 0},
		{"of a Node that joined later", drain(joinedAfter(time.Minute), "one"), time.Minute},
		{"of a drain that a recreated NodeMaintenance continues", drain(continuing(-20*time.Minute), "one"), -20 * time.Minute},
		{"of a recreated NodeMaintenance whose stage has not started yet", drain(all(continuing(-20*time.Minute), withoutStatus), "one"), -20 * time.Minute},
		{"of a drain that has resumed", drain(all(continuing(time.Hour), resumedAfter(time.Hour)), "one"), 0},
	} {
		t.Run("E56: the start "+test.name, func(t *testing.T) {
			terms := evacuation.DrainersOf([]v1alpha1.NodeMaintenance{test.m}, nil).On(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}).Combined()
			if terms.DrainStart == nil || !terms.DrainStart.Equal(noon.Add(test.want)) {
				t.Errorf("got %v, want %v", terms.DrainStart, noon.Add(test.want))
			}
		})
	}
}

func TestTimeoutsOfTerms(t *testing.T) {
	observed := func(seconds int32, deadline time.Duration) func(*v1alpha1.NodeMaintenance) {
		return all(within(seconds), func(m *v1alpha1.NodeMaintenance) {
			m.Status.DrainTimeout = &v1alpha1.DrainTimeoutStatus{Deadline: metav1.NewTime(noon.Add(deadline)), ObservedTime: metav1.NewTime(noon.Add(time.Second))}
		})
	}
	of := func(start, ends time.Duration) evacuation.Timeout {
		return evacuation.Timeout{Start: noon.Add(start), Began: noon.Add(start), Ends: noon.Add(ends), Observed: noon.Add(time.Second)}
	}
	for _, test := range []struct {
		name string
		all  []v1alpha1.NodeMaintenance
		want []evacuation.Timeout
	}{
		{"E52: a timeout that is observed", []v1alpha1.NodeMaintenance{drain(observed(600, 10*time.Minute), "one")}, []evacuation.Timeout{of(0, 10*time.Minute)}},
		{"E52: no timeout before it is observed", []v1alpha1.NodeMaintenance{drain(observed(600, time.Hour), "one")}, nil},
		{"E52: no timeout", []v1alpha1.NodeMaintenance{drain(unlimited, "one")}, nil},
		{
			"R59: of a Node that joined later",
			[]v1alpha1.NodeMaintenance{drain(all(observed(600, 10*time.Minute), joinedAfter(time.Minute)), "two", "one"), drain(observed(60, time.Minute), "one")},
			[]evacuation.Timeout{of(time.Minute, 11*time.Minute), of(0, time.Minute)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
			if got := evacuation.DrainersOf(test.all, nil).On(node).Combined().Timeouts; !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func describe(terms evacuation.Terms) string {
	text := "never"
	if terms.DrainEnds != nil {
		text = fmt.Sprintf("until %s", terms.DrainEnds.Sub(noon))
	}
	if terms.Ordered {
		text += ", ordered"
	}
	if terms.DeletesUnready {
		text += ", deletes unready"
	}
	if len(terms.EvictionWebhooks) > 0 {
		text += fmt.Sprintf(", signals to %v", terms.EvictionWebhooks)
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
		{"R59: a Node joins again", of(drain(joinedAfter(time.Minute), "one")), of(drain(joinedAfter(time.Hour), "one")), true},
		{"E52: a timeout is observed", of(drain(within(600), "one")), of(drain(all(within(600), func(m *v1alpha1.NodeMaintenance) {
			m.Status.DrainTimeout = &v1alpha1.DrainTimeoutStatus{Deadline: metav1.NewTime(noon.Add(10 * time.Minute)), ObservedTime: metav1.NewTime(noon)}
		}), "one")), true},
		{
			"only the progress changes", of(drain(within(600), "one")),
			of(drain(func(m *v1alpha1.NodeMaintenance) { within(600)(m); m.Status.NodeStatuses[0].PodsEvacuating = 3 }, "one")), false,
		},
		{"E50: a drain is completed", of(drain(unlimited, "one")), of(drain(completed, "one")), true},
		{"E58: a drain rule is edited", of(drain(unlimited, "one")), of(drain(func(m *v1alpha1.NodeMaintenance) { skipping(m); m.Generation++ }, "one")), true},
		{
			"E58: it was replaced by one of its name with other rules, of the same generation", of(drain(unlimited, "one")),
			of(drain(func(m *v1alpha1.NodeMaintenance) { skipping(m); m.UID = "another" }, "one")), true,
		},
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
