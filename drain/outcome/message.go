package outcome

import (
	"fmt"
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxNamed is the number of applications that a message names.
const maxNamed = 3

// Summary says in a line what became of evicted Pods: "6 evicted: 4 replaced and ready, 1 Pending, 1 not replaced".
func Summary(pods v1alpha1.EvictedPods) string {
	var parts []string
	for _, part := range []struct {
		pods int32
		what string
	}{
		{pods.Ready, "replaced and ready"}, {pods.NotReady, "replaced and not ready"}, {pods.Pending, "Pending"}, {pods.NotReplaced, "not replaced"},
		{pods.NotNeeded, "not needed"}, {pods.Unknown, "unknown"},
	} {
		if part.pods > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.pods, part.what))
		}
	}
	if len(parts) == 0 {
		return "0 evicted"
	}
	return fmt.Sprintf("%d evicted: %s", pods.Evicted, strings.Join(parts, ", "))
}

// EventPodsWithoutPlace on a MachineDrainPolicy or NodeMaintenance means that Pods that a drain has evicted are Pending or not replaced
// three minutes after its end.
const EventPodsWithoutPlace = "PodsWithoutPlace"

// WithoutPlaceMessage names the Pods without a place of an outcome, and why, for an event. where says which Node has been drained.
func WithoutPlaceMessage(outcome *v1alpha1.DrainOutcome, where string) string {
	var applications []string
	for _, of := range outcome.Applications {
		if pods := of.Pods.Pending + of.Pods.NotReplaced; pods > 0 {
			applications = append(applications, fmt.Sprintf("%s of %s (%s)", text.Count(pods, "Pod"), of.Controller, of.Why))
		}
	}
	pods := outcome.Pods.Pending + outcome.Pods.NotReplaced
	have := "have"
	if pods == 1 {
		have = "has"
	}
	return text.Cut(fmt.Sprintf("After the drain of %s, %s %s no place: %s", where, text.Count(pods, "evicted Pod"), have,
		text.List(applications, maxNamed)), 1024)
}

// Keep returns the drains that are kept, in their order. Beyond a number of drains, or of applications in all of them, which is at least
// MaxApplications, it removes drains that are complete before others, and older ones before newer ones.
func Keep(drains []v1alpha1.RecentDrain, limit, applications int) []v1alpha1.RecentDrain {
	count := 0
	for i := range drains {
		count += len(drains[i].Applications)
	}
	for len(drains) > limit || count > applications {
		worst := 0
		for i := range drains {
			if precedes(&drains[i], &drains[worst]) {
				worst = i
			}
		}
		count -= len(drains[worst].Applications)
		drains = append(drains[:worst:worst], drains[worst+1:]...)
	}
	return drains
}

// precedes reports whether a drain is removed before another one.
func precedes(a, b *v1alpha1.RecentDrain) bool {
	if done := IsComplete(&a.DrainOutcome); done != IsComplete(&b.DrainOutcome) {
		return done
	}
	return a.EndTime.Before(&b.EndTime)
}
