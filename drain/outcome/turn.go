package outcome

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// turnEvery is how often an outcome is read while other drains may wait for it, between the readings of Due.
const turnEvery = 10 * time.Second

// DueForTurn reports whether an outcome must be read now because the next drain waits until it is complete, at most until a time after the
// end of the drain. With the timeout 0, none waits.
func DueForTurn(outcome *v1alpha1.DrainOutcome, timeout time.Duration, now time.Time) bool {
	isRead := outcome.ReadTime != nil && now.Sub(outcome.ReadTime.Time).Abs() < turnEvery
	return IsAwaited(outcome, timeout, now) && !isRead
}

// NextForTurn returns when an outcome is read next after now because of that, zero if it is not.
func NextForTurn(outcome *v1alpha1.DrainOutcome, timeout time.Duration, now time.Time) time.Time {
	if !IsAwaited(outcome, timeout, now) {
		return time.Time{}
	}
	return now.Add(turnEvery)
}

// IsAwaited reports whether the next drain waits until an outcome is complete, at most until a time after the end of the drain.
func IsAwaited(outcome *v1alpha1.DrainOutcome, timeout time.Duration, now time.Time) bool {
	return now.Sub(outcome.EndTime.Time) < timeout && !IsComplete(outcome)
}
