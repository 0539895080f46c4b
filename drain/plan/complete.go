package plan

import (
	"math"
	"slices"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

var (
	// defaultPriorities are the priorities at which every plan stops, for each Pod type.
	defaultPriorities = []int32{
		1000000000,    // the highest one of user defined priority classes
		2000000000,    // system-cluster-critical
		2000001000,    // system-node-critical
		math.MaxInt32, // whatever is left
	}
	// podTypes in the order in which they drain.
	podTypes = []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic}
)

// Complete returns the plan that is in effect: the entries given, and those of KEP-4212's twelve defaults that they leave
// out, in sorted position. An entry without a type is one of type Default. The entries given stay in their order, and
// completing a complete plan changes nothing.
func Complete(entries []v1alpha1.DrainPlanEntry) []v1alpha1.DrainPlanEntry {
	plan := make([]v1alpha1.DrainPlanEntry, 0, len(entries)+len(podTypes)*len(defaultPriorities))
	for _, entry := range entries {
		if entry.PodType == "" {
			entry.PodType = v1alpha1.PodTypeDefault
		}
		plan = append(plan, entry)
	}
	for _, podType := range podTypes {
		for _, priority := range defaultPriorities {
			plan = withEntry(plan, v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: priority})
		}
	}
	return plan
}

// withEntry adds an entry without a selector, unless the plan has it: before the first entry that is to come later.
func withEntry(plan []v1alpha1.DrainPlanEntry, entry v1alpha1.DrainPlanEntry) []v1alpha1.DrainPlanEntry {
	at := len(plan)
	for i, other := range plan {
		if other.PodType == entry.PodType && other.PodPriority == entry.PodPriority && selectsAll(other.PodSelector) {
			return plan
		}
		if at == len(plan) && comesLater(other, entry) {
			at = i
		}
	}
	return slices.Insert(plan, at, entry)
}

// comesLater says whether a comes after b in a sorted plan, where b has no selector.
func comesLater(a, b v1alpha1.DrainPlanEntry) bool {
	rankA, rankB := rankOf(a.PodType), rankOf(b.PodType)
	return rankA > rankB || rankA == rankB && a.PodPriority > b.PodPriority
}
