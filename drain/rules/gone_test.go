package rules_test

import (
	"testing"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestAwaitReplacement(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	named := func(names ...string) (all []v1alpha1.DrainRule) {
		for _, name := range names {
			all = append(all, v1alpha1.DrainRule{Name: name, Behavior: v1alpha1.DrainBehaviorSkip})
		}
		return all
	}
	edited := named("machine-drain-rule/a")
	edited[0].Behavior = v1alpha1.DrainBehaviorDrain
	for _, tc := range []struct {
		name            string
		present, wanted []v1alpha1.DrainRule
		ago             time.Duration // since the rule was found to be gone
		waits           bool
	}{
		{"a MachineDrainRule that is gone since a moment still applies", named("static-pods", "machine-drain-rule/a"), named("static-pods"), 2 * time.Second, true},
		{"one that is gone for longer does not", named("static-pods", "machine-drain-rule/a"), named("static-pods"), 3 * time.Second, false},
		{"an edited one takes effect at once", named("machine-drain-rule/a"), edited, 0, false},
		{"an added one takes effect at once", named("machine-drain-rule/a"), named("machine-drain-rule/a", "machine-drain-rule/b"), 0, false},
		{"a built-in rule is lifted at once", named("daemonset-pods", "machine-drain-rule/a"), named("machine-drain-rule/a"), 0, false},
		{"a renamed one may be replaced in two steps", named("machine-drain-rule/a"), named("machine-drain-rule/b"), 0, true},
	} {
		t.Run("M108: "+tc.name, func(t *testing.T) {
			if got := rules.AwaitReplacement(tc.present, tc.wanted, now.Add(-tc.ago), now); got.IsZero() == tc.waits {
				t.Errorf("waits until %s", got)
			} else if tc.waits && !got.Equal(now.Add(rules.GoneCounts-tc.ago)) {
				t.Errorf("waits until %s", got)
			}
			if got := rules.IsAnyGone(tc.present, tc.wanted); tc.waits && !got {
				t.Error("no rule is gone")
			}
		})
	}
}

func TestStaySkipped(t *testing.T) {
	const skip, drain = v1alpha1.DrainBehaviorSkip, v1alpha1.DrainBehaviorDrain
	rule := func(name string, behavior v1alpha1.DrainBehavior) v1alpha1.DrainRule {
		return v1alpha1.DrainRule{Name: name, Behavior: behavior}
	}
	a, b, c := rule("machine-drain-rule/a", drain), rule("machine-drain-rule/b", skip), rule("machine-drain-rule/c", drain)
	builtIn := rule("daemonset-pods", skip)
	for _, tc := range []struct {
		name           string
		present, valid []v1alpha1.DrainRule
		invalid        string
		want           bool
	}{
		{"no MachineDrainRule skips Pods", []v1alpha1.DrainRule{builtIn, a, c}, nil, "machine-drain-rule/a", true},
		{
			"the rule that skips Pods is unchanged, and a later one is invalid",
			[]v1alpha1.DrainRule{builtIn, a, b, c}, []v1alpha1.DrainRule{a, b}, "machine-drain-rule/c", true,
		},
		{"there are too many rules", []v1alpha1.DrainRule{a, b}, []v1alpha1.DrainRule{builtIn, a, b, c}, rules.RuleTooManyRules, true},
		{"the rule that skips Pods is beyond the limit", []v1alpha1.DrainRule{a, b}, []v1alpha1.DrainRule{builtIn, a}, rules.RuleTooLarge, false},
		{"the rule that skips Pods is gone", []v1alpha1.DrainRule{a, b}, []v1alpha1.DrainRule{a}, "machine-drain-rule/c", false},
		{"the rule that skips Pods is edited", []v1alpha1.DrainRule{b}, []v1alpha1.DrainRule{rule(b.Name, drain)}, "machine-drain-rule/c", false},
		{"the rule that skips Pods is invalid", []v1alpha1.DrainRule{b}, nil, b.Name, false},
		{"the invalid rule has a higher precedence", []v1alpha1.DrainRule{a, b}, []v1alpha1.DrainRule{a, b}, "machine-drain-rule/aa", false},
		{"a new rule has a higher precedence", []v1alpha1.DrainRule{b}, []v1alpha1.DrainRule{a, b}, "machine-drain-rule/c", false},
		{"a user has added a rule", []v1alpha1.DrainRule{builtIn, a, rule("mine", skip)}, []v1alpha1.DrainRule{builtIn, a}, "machine-drain-rule/c", false},
		{"it is not known which rule is invalid", []v1alpha1.DrainRule{b}, []v1alpha1.DrainRule{b}, "", false},
	} {
		t.Run("M6: "+tc.name, func(t *testing.T) {
			if got := rules.StaySkipped(tc.present, tc.valid, tc.invalid); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
