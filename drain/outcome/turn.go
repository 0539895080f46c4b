package outcome

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// turnEvery is how often an outcome is read while other drains may wait for it, between the readings of Due. Each reading lists Pods, so it
// is less often the longer that lasts: when the time since the end of the drain has become longer by a turnShare.
const (
	turnEvery = 10 * time.Second
	turnShare = 6
)

// DueForTurn reports whether an outcome must be read now because the next drain waits until it is complete, at most until a time after the
// end of the drain. With the timeout 0, none waits.
func DueForTurn(outcome *v1alpha1.DrainOutcome, timeout time.Duration, now time.Time) bool {
	isRead := outcome.ReadTime != nil && now.Sub(outcome.ReadTime.Time).Abs() < turnInterval(outcome)
	return IsAwaited(outcome, timeout, now) && !isRead
}

// NextForTurn returns when an outcome is read next after now because of that, zero if it is not.
func NextForTurn(outcome *v1alpha1.DrainOutcome, timeout time.Duration, now time.Time) time.Time {
	switch {
	case !IsAwaited(outcome, timeout, now):
		return time.Time{}
	case DueForTurn(outcome, timeout, now):
		return now.Add(turnEvery)
	default:
		return outcome.ReadTime.Add(turnInterval(outcome))
	}
}

// turnInterval is the time between the last reading of an outcome and the next one.
func turnInterval(outcome *v1alpha1.DrainOutcome) time.Duration {
	if outcome.ReadTime == nil {
		return turnEvery
	}
	return max(turnEvery, outcome.ReadTime.Sub(outcome.EndTime.Time)/turnShare)
}

// IsAwaited reports whether the next drain waits until an outcome is complete, at most until a time after the end of the drain.
func IsAwaited(outcome *v1alpha1.DrainOutcome, timeout time.Duration, now time.Time) bool {
	return now.Sub(outcome.EndTime.Time) < timeout && !IsComplete(outcome)
}
