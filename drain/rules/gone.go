package rules

import (
	"slices"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// GoneCounts is for how long a MachineDrainRule that is gone still applies to a drain in progress. Tools replace an object by deleting and creating it:
// kubectl replace --force, for example. In between, no Pod that the rule protects may be evicted.
const GoneCounts = 3 * time.Second

// IsAnyGone reports whether a MachineDrainRule is among the present rules of a NodeMaintenance, but not among those that it should have.
func IsAnyGone(present, wanted []v1alpha1.DrainRule) bool {
	return slices.ContainsFunc(present, func(rule v1alpha1.DrainRule) bool {
		return strings.HasPrefix(rule.Name, MachineDrainRulePrefix) &&
			!slices.ContainsFunc(wanted, func(w v1alpha1.DrainRule) bool { return w.Name == rule.Name })
	})
}

// IsAnySkipped reports whether a MachineDrainRule among the rules leaves Pods on their Node.
func IsAnySkipped(present []v1alpha1.DrainRule) bool {
	return slices.ContainsFunc(present, func(rule v1alpha1.DrainRule) bool {
		return strings.HasPrefix(rule.Name, MachineDrainRulePrefix) && rule.Behavior == v1alpha1.DrainBehaviorSkip
	})
}

// AwaitReplacement returns until when the present rules still apply, because one that was found to be gone at a time may be replaced. It is zero if the
// wanted rules apply.
func AwaitReplacement(present, wanted []v1alpha1.DrainRule, gone, now time.Time) time.Time {
	if until := gone.Add(GoneCounts); IsAnyGone(present, wanted) && now.Before(until) {
		return until
	}
	return time.Time{}
}
