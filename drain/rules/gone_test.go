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
