package plan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func entries(rows ...entry) []v1alpha1.DrainPlanEntry {
	return maintenance("").plan(rows...).Plan
}

func showPlan(entries []v1alpha1.DrainPlanEntry) string {
	var rows []v1alpha1.DrainTarget
	for _, e := range entries {
		rows = append(rows, v1alpha1.DrainTarget{PodType: e.PodType, PodPriority: e.PodPriority, PodSelector: e.PodSelector.Core()})
	}
	return show(rows)
}

// defaults returns the four defaults of a type.
func defaults(change func(entry) entry) []entry {
	var rows []entry
	for _, priority := range []int32{1000000000, 2000000000, 2000001000, everyPriority} {
		rows = append(rows, change(upTo(priority)))
	}
	return rows
}

func TestComplete(t *testing.T) {
	pods := defaults(func(e entry) entry { return e })
	daemonSets := defaults(entry.daemonSets)
	statics := defaults(entry.statics)
	untyped := entry{v1alpha1.DrainTarget{PodPriority: 1000000000}}
	allOf := func(app string, priority int32) entry { return upTo(priority).app(app) }

	last := func(change func(entry) entry) entry { return change(upTo(everyPriority)) }
	for name, test := range map[string]struct {
		given, expected []entry
		defaults        v1alpha1.DrainPlanDefaults
	}{
		"R4: without defaults, no plan has one entry for each type": {
			defaults: v1alpha1.DrainPlanDefaultsNone,
			expected: []entry{upTo(everyPriority), last(entry.daemonSets), last(entry.statics)},
		},
		"R4: without defaults, the user's entries are followed by one entry for each type": {
			defaults: v1alpha1.DrainPlanDefaultsNone,
			given:    []entry{upTo(1000), allOf("postgres", 2000), upTo(7).statics()},
			expected: []entry{upTo(1000), allOf("postgres", 2000), upTo(everyPriority), last(entry.daemonSets), upTo(7).statics(), last(entry.statics)},
		},
		"R4: PriorityTiers are the defaults": {
			defaults: v1alpha1.DrainPlanDefaultsPriorityTiers,
			expected: slices.Concat(pods, daemonSets, statics),
		},
		"R4: no plan has the twelve defaults": {
			expected: slices.Concat(pods, daemonSets, statics),
		},
		"R4: entries of the user stay where they are, the defaults come in sorted position": {
			given: []entry{upTo(1000), allOf("postgres", 2000), upTo(1500000000), upTo(1000).daemonSets()},
			expected: slices.Concat([]entry{upTo(1000), allOf("postgres", 2000), pods[0], upTo(1500000000)}, pods[1:],
				[]entry{upTo(1000).daemonSets()}, daemonSets, statics),
		},
		"R4: a default that the user has written isn't added again": {
			given:    []entry{upTo(everyPriority), upTo(1000000000).statics()},
			expected: slices.Concat(pods, daemonSets, statics),
		},
		"R4: an entry with a selector at the priority of a default stands before it, not for it": {
			given:    []entry{allOf("postgres", 1000000000), allOf("redis", 1000000000)},
			expected: slices.Concat([]entry{allOf("postgres", 1000000000), allOf("redis", 1000000000)}, pods, daemonSets, statics),
		},
		"R4: an unset type is Default": {
			given:    []entry{untyped},
			expected: slices.Concat(pods, daemonSets, statics),
		},
		"R4: priorities may be negative": {
			given:    []entry{upTo(-10), upTo(0)},
			expected: slices.Concat([]entry{upTo(-10), upTo(0)}, pods, daemonSets, statics),
		},
		"R4: a plan out of order is never sorted": {
			given:    []entry{upTo(2000), upTo(1000)},
			expected: slices.Concat([]entry{upTo(2000), upTo(1000)}, pods, daemonSets, statics),
		},
	} {
		t.Run(name, func(t *testing.T) {
			given := entries(test.given...)
			before := fmt.Sprint(given)
			completed := plan.Complete(given, test.defaults)
			if got, expected := showPlan(completed), showPlan(entries(test.expected...)); got != expected {
				t.Errorf("\n     got %s\nexpected %s", got, expected)
			}
			if again := plan.Complete(completed, test.defaults); showPlan(again) != showPlan(completed) {
				t.Errorf("not idempotent:\n%s\n%s", showPlan(completed), showPlan(again))
			}
			if fmt.Sprint(given) != before {
				t.Errorf("the plan given was changed")
			}
		})
	}
}

func TestCompleteKeepsSelectors(t *testing.T) {
	selector := &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": "postgres"}}
	completed := plan.Complete([]v1alpha1.DrainPlanEntry{{PodPriority: 5, PodSelector: selector}}, v1alpha1.DrainPlanDefaultsNone)
	if completed[0].PodSelector != selector || completed[0].PodType != v1alpha1.PodTypeDefault {
		t.Errorf("first entry: %v", completed[0])
	}
}
