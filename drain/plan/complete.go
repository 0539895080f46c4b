package plan

import (
	"math"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

var (
	// tiers are the priorities of KEP-4212's default entries of each Pod type.
	tiers = []int32{
		1000000000,    // the highest one of user defined priority classes
		2000000000,    // system-cluster-critical
		2000001000,    // system-node-critical
		math.MaxInt32, // all remaining Pods
	}
	// podTypes in the order in which they drain.
	podTypes = []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic}
)

// Complete returns the plan that is in effect: the given entries, and the missing entries of the defaults in sorted position. An entry
// without a type has type Default. The given entries keep their order. Completing a complete plan changes nothing.
func Complete(entries []v1alpha1.DrainPlanEntry, defaults v1alpha1.DrainPlanDefaults) []v1alpha1.DrainPlanEntry {
	priorities := prioritiesOf(defaults)
	plan := make([]v1alpha1.DrainPlanEntry, 0, len(entries)+len(podTypes)*len(priorities))
	for _, entry := range entries {
		if entry.PodType == "" {
			entry.PodType = v1alpha1.PodTypeDefault
		}
		plan = append(plan, entry)
	}
	for _, podType := range podTypes {
		for _, priority := range priorities {
			plan = withEntry(plan, v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: priority})
		}
	}
	return plan
}

// prioritiesOf returns the priorities of the default entries of each Pod type. The last one selects all Pods.
func prioritiesOf(defaults v1alpha1.DrainPlanDefaults) []int32 {
	if defaults == v1alpha1.DrainPlanDefaultsNone {
		return []int32{math.MaxInt32}
	}
	return tiers
}

// withEntry adds an entry without a selector before the first entry that comes later, unless the plan contains it.
func withEntry(plan []v1alpha1.DrainPlanEntry, entry v1alpha1.DrainPlanEntry) []v1alpha1.DrainPlanEntry {
	at := len(plan)
	for i, other := range plan {
		if other.PodType == entry.PodType && other.PodPriority == entry.PodPriority && selectsAll(other.PodSelector.Core()) {
			return plan
		}
		if at == len(plan) && comesLater(other, entry) {
			at = i
		}
	}
	return slices.Insert(plan, at, entry)
}

// comesLater reports whether a comes after b in a sorted plan, where b has no selector.
func comesLater(a, b v1alpha1.DrainPlanEntry) bool {
	rankA, rankB := rankOf(a.PodType), rankOf(b.PodType)
	return rankA > rankB || rankA == rankB && a.PodPriority > b.PodPriority
}
