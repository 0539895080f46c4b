package machinedrain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Progress is what this process has observed about the progress of a drain. The zero value means that it is not known: the drain then counts as one that
// makes progress.
type Progress struct {
	// Last is when the drain last made progress: a Pod that must be drained was gone, an evacuator reported progress, or a volume was detached.
	Last time.Time
	// Observed is since when this process has observed the drain without an interruption.
	Observed time.Time
	// Left is the number of Pods that must be drained, and OnlyTerminates means that all of them have exceeded their grace periods.
	Left           int
	OnlyTerminates bool
}

// StallPeriod is how long a drain makes no progress before the Nodes of Machines that wait for it become schedulable.
const StallPeriod = time.Minute

// stallsAt returns from when on the drain has made no progress for a period, if it makes none until then. It is zero if that is not known. What is known
// from before an interruption counts, but only after BlindPeriod: after an outage, the drain must have had time to make progress.
func (p Progress) stallsAt(period time.Duration) time.Time {
	if p.Last.IsZero() || p.Observed.IsZero() {
		return time.Time{}
	}
	at, earliest := p.Last.Add(period), p.Observed.Add(BlindPeriod)
	if at.Before(earliest) {
		return earliest
	}
	return at
}

func (p Progress) isStalled(period time.Duration, now time.Time) bool {
	at := p.stallsAt(period)
	return !at.IsZero() && !now.Before(at)
}

// After returns the progress of a drain that has begun, or whose volumes were last detached, at a time.
func (p Progress) After(t time.Time) Progress {
	if !p.Last.IsZero() && t.After(p.Last) {
		p.Last = t
	}
	return p
}

// onlyTerminates reports whether the Node of a drain has not been ready for StallPeriod, and nothing happens there any more but that Pods fail to terminate.
func (p Progress) onlyTerminates(node *corev1.Node, now time.Time) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			isBroken := condition.Status != corev1.ConditionTrue && now.Sub(condition.LastTransitionTime.Time) >= StallPeriod
			return isBroken && p.OnlyTerminates && p.isStalled(StallPeriod, now)
		}
	}
	return false
}
