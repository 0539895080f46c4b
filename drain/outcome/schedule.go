package outcome

import (
	"slices"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// readings are when an outcome is read after the end of its drain. Those after the last of them are lateEvery apart, and are made while
// Pods have no place or are unknown.
var readings = []time.Duration{0, time.Minute, 3 * time.Minute, 10 * time.Minute}

const (
	lateEvery = 10 * time.Minute
	lateUntil = time.Hour

	// placeAfter is after how long a Pod without a place counts: until then, its controller and the scheduler have not had time for it.
	placeAfter = 3 * time.Minute
)

// offsets returns when an outcome is read, after the end of its drain.
func offsets(outcome *v1alpha1.DrainOutcome) []time.Duration {
	all := readings
	if pods := outcome.Pods; pods.Pending+pods.NotReplaced > 0 || outcome.ReadTime == nil || isUnread(outcome) {
		all = slices.Clip(all)
		for at := readings[len(readings)-1] + lateEvery; at <= lateUntil; at += lateEvery {
			all = append(all, at)
		}
	}
	return all
}

// isUnread reports whether an application could not be read, so that another reading may find out more.
func isUnread(outcome *v1alpha1.DrainOutcome) bool {
	for _, application := range outcome.Applications {
		if application.Pods.Unknown > 0 {
			return true
		}
	}
	return false
}

// Due reports whether an outcome must be read now. A reading in the future does not count: it is of a manager whose clock was ahead.
func Due(outcome *v1alpha1.DrainOutcome, now time.Time) bool {
	due := false
	for _, offset := range offsets(outcome) {
		if at := outcome.EndTime.Add(offset); !at.After(now) {
			due = outcome.ReadTime == nil || outcome.ReadTime.Time.Before(at) || outcome.ReadTime.After(now)
		}
	}
	return due
}

// Next returns when an outcome is read next after now, or when WithoutPlace becomes 0. It is zero if nothing follows.
func Next(outcome *v1alpha1.DrainOutcome, now time.Time) time.Time {
	for _, offset := range offsets(outcome) {
		if at := outcome.EndTime.Add(offset); at.After(now) {
			return at
		}
	}
	if WithoutPlace(outcome, now) > 0 {
		return outcome.EndTime.Add(lateUntil + lateEvery)
	}
	return time.Time{}
}

// WithoutPlace returns the number of Pods that have no place three minutes after the end of a drain or later: that are Pending or not
// replaced. It is 0 after the last reading, since nothing more is known about them.
func WithoutPlace(outcome *v1alpha1.DrainOutcome, now time.Time) int32 {
	if outcome.ReadTime == nil || outcome.ReadTime.Sub(outcome.EndTime.Time) < placeAfter || now.Sub(outcome.EndTime.Time) >= lateUntil+lateEvery {
		return 0
	}
	return outcome.Pods.Pending + outcome.Pods.NotReplaced
}
