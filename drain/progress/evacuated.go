package progress

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Evacuated returns how many Pods have been evacuated since the drain began, from the previous summary and the present counts.
func Evacuated(before, now v1alpha1.NodeMaintenanceSummary) int32 {
	decrease := before.PodsPending + before.PodsEvacuating - now.PodsPending - now.PodsEvacuating
	return before.PodsEvacuated + max(decrease, 0)
}

// Left returns how many Pods must still be drained, and whether all of them have exceeded their grace periods.
func Left(pods []Pod, now time.Time) (left int, onlyTerminate bool) {
	overdue := 0
	for _, p := range pods {
		if p.Finished || p.Stays {
			continue
		}
		if left++; p.Deletion != nil && now.After(p.overdueAt()) {
			overdue++
		}
	}
	return left, left > 0 && left == overdue
}

// reportInterval is the minimum time between two reports of evacuators that LastProgress returns: each is a write of the status.
const reportInterval = 30 * time.Second

// Observed is what is known about the progress of a drain besides the counts in its status.
type Observed struct {
	// Before is when it had made progress as this process knows, which the status may not have yet. It is zero if that is not known.
	Before time.Time
	// Gone means that a Pod which must be drained has terminated or completed since then.
	Gone bool
	// Reported is when an evacuator last reported progress, zero if none has.
	Reported time.Time
}

// LastProgress returns when a drain last made progress, from the previous and the present summary and from what was observed. It is now if
// it was not known, and if Pods must be drained again. A time in the future does not count: the clock of another manager or of an evacuator
// was ahead.
func LastProgress(before, present v1alpha1.NodeMaintenanceSummary, observed Observed, now time.Time) *metav1.Time {
	last := observed.Before
	if before.LastProgressTime != nil && before.LastProgressTime.After(last) {
		last = before.LastProgressTime.Time
	}
	resumes := before.PodsPending+before.PodsEvacuating == 0 && present.PodsPending+present.PodsEvacuating > 0
	switch {
	case resumes || last.IsZero() || last.After(now) || observed.Gone || present.PodsEvacuated > before.PodsEvacuated:
		last = now
	case observed.Reported.Sub(last) >= reportInterval && !observed.Reported.After(now):
		last = observed.Reported
	}
	return &metav1.Time{Time: last.Truncate(time.Second)}
}
