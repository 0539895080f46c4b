package rules

import (
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// GoneCounts is for how long a MachineDrainRule that is gone still applies to a drain in progress. Tools replace an object by deleting and
// creating it: kubectl replace --force, for example. In between, no Pod that the rule protects may be evicted.
const GoneCounts = 3 * time.Second

// IsAnyGone reports whether a MachineDrainRule is among the present rules of a NodeMaintenance, but not among those that it should have.
func IsAnyGone(present, wanted []v1alpha1.DrainRule) bool {
	return slices.ContainsFunc(present, func(rule v1alpha1.DrainRule) bool {
		return isMachineDrainRule(rule) &&
			!slices.ContainsFunc(wanted, func(w v1alpha1.DrainRule) bool { return w.Name == rule.Name })
	})
}

// StaySkipped reports whether the Pods that MachineDrainRules among the present rules leave on a drained Node stay skipped, however the
// invalid MachineDrainRules are fixed: up to the last rule that skips Pods, the valid rules are the present ones, and none is invalid.
// firstInvalid is the first invalid rule by name, "" if it is not known. It returns false if a user has changed the other rules.
func StaySkipped(present, valid []v1alpha1.DrainRule, firstInvalid string) bool {
	last := ""
	for i := range present {
		if isMachineDrainRule(present[i]) && present[i].Behavior == v1alpha1.DrainBehaviorSkip {
			last = present[i].Name
		}
	}
	upToLast := func(all []v1alpha1.DrainRule) []v1alpha1.DrainRule {
		return slices.DeleteFunc(slices.Clone(all), func(rule v1alpha1.DrainRule) bool { return !isMachineDrainRule(rule) || rule.Name > last })
	}
	if !apiequality.Semantic.DeepEqual(others(present), others(valid)) {
		return false
	}
	return last == "" || last < firstInvalid && apiequality.Semantic.DeepEqual(upToLast(present), upToLast(valid))
}

// others returns the rules that every NodeMaintenance of a Machine has. That for the Pods of DaemonSets is removed after the wait for
// volumes.
func others(all []v1alpha1.DrainRule) []v1alpha1.DrainRule {
	return slices.DeleteFunc(slices.Clone(all), func(rule v1alpha1.DrainRule) bool { return isMachineDrainRule(rule) || rule.Name == RuleDaemonSetPods })
}

func isMachineDrainRule(rule v1alpha1.DrainRule) bool {
	return strings.HasPrefix(rule.Name, MachineDrainRulePrefix)
}

// AwaitReplacement returns until when the present rules still apply, because one that was found to be gone at a time may be replaced. It is
// zero if the wanted rules apply.
func AwaitReplacement(present, wanted []v1alpha1.DrainRule, gone, now time.Time) time.Time {
	if until := gone.Add(GoneCounts); IsAnyGone(present, wanted) && now.Before(until) {
		return until
	}
	return time.Time{}
}
