package machinedrain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Progress is what this process has observed about the progress of a drain. The zero value means that it is not known: the drain then
// counts as one that makes progress.
type Progress struct {
	// Last is when the drain last made progress: a Pod that must be drained was gone, an evacuator reported progress, or a volume was
	// detached.
	Last time.Time
	// Observed is since when this process has observed the drain without an interruption.
	Observed time.Time
	// Left is the number of Pods that must be drained, and OnlyTerminates means that all of them have exceeded their grace periods.
	Left           int
	OnlyTerminates bool
}

// StallPeriod is how long a drain makes no progress before the Nodes of Machines that wait for it become schedulable.
const StallPeriod = time.Minute

// stallsAt returns from when on the drain has made no progress for a period, if it makes none until then. It is zero if that is not known.
// What is known from before an interruption counts, but only after BlindPeriod: after an outage, the drain must have had time to make
// progress.
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

// onlyTerminates reports whether the Node of a drain has not been ready for StallPeriod, and nothing happens there any more but that Pods
// fail to terminate.
func (p Progress) onlyTerminates(node *corev1.Node, now time.Time) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			isBroken := condition.Status != corev1.ConditionTrue && now.Sub(condition.LastTransitionTime.Time) >= StallPeriod
			return isBroken && p.OnlyTerminates && p.isStalled(StallPeriod, now)
		}
	}
	return false
}

// excusedFor returns how many of the drains in progress do not count for a Machine: one, if it has made no progress for the patience of the
// policy, and no drain exceeds the limit of another policy. If the limit of this policy is exceeded already, one that does not count
// changes nothing.
func excusedFor(self Contender, all []Contender, now time.Time) int {
	isStalled := func(c Contender) bool { return c.isStalled(self.Patience, now) }
	if !slices.ContainsFunc(underLimitOf(self, all), isStalled) || exceedsElsewhere(self, all, now) {
		return 0
	}
	return 1
}

// excuses returns a function that reports whether a drain in progress is one of which a number does not count for a Machine, see
// excusedFor.
func (c Contender) excuses(count int, now time.Time) func(Contender) bool {
	return func(drain Contender) bool { return count > 0 && drain.isStalled(c.Patience, now) }
}

// isStalled reports whether a drain in progress has made no progress for a patience. A patience of 0 has no end. A drain that has ended has
// a limit instead, see Replacing.
func (c Contender) isStalled(patience time.Duration, now time.Time) bool {
	return c.Standing == HasTurn && c.countsUntil.IsZero() && patience > 0 && c.Progress.isStalled(patience, now)
}

// exceedsElsewhere reports whether a drain exceeds the limit of another policy than that of a Machine, or may in favor of a Machine that
// has waited longer, and whose drain the manager may not have observed yet.
func exceedsElsewhere(self Contender, all []Contender, now time.Time) bool {
	draining, isStalled := map[string][]Contender{}, map[string]bool{}
	for _, c := range all {
		if c.Standing == HasTurn {
			draining[c.Policy] = append(draining[c.Policy], c)
		}
		isStalled[c.Policy] = isStalled[c.Policy] || c.isStalled(c.Patience, now)
	}
	var unlimited []Contender
	if self.Policy != "" {
		unlimited = draining[""] // of policies that are gone: they count under each limit
	}
	return slices.ContainsFunc(all, func(c Contender) bool {
		isNext := c.Standing == Waits && isStalled[c.Policy] && compareContenders(c, self) < 0
		isLimited := c.Limit > 0 || c.Topology.Key != ""
		return c.Policy != self.Policy && isLimited && (c.exceeds(slices.Concat(draining[c.Policy], unlimited)) || isNext)
	})
}

// stallsAt returns from when on none of the drains in progress has made progress for StallPeriod, whether that is so now, and whether that
// is not known, see Turn. One that has just begun makes progress.
func stallsAt(draining []Contender, now time.Time) (last time.Time, stalled, unknown bool) {
	isKnown, moves := len(draining) > 0, false
	for _, c := range draining {
		at, since := c.Progress.stallsAt(StallPeriod), c.Progress.Last
		if c.Began.After(since) {
			since = c.Began
		}
		isKnown, moves = isKnown && !at.IsZero(), moves || now.Before(since.Add(StallPeriod))
		if at.After(last) {
			last = at
		}
	}
	if !isKnown {
		return time.Time{}, false, len(draining) > 0 && !moves
	}
	return last, !now.Before(last), now.Before(last) && !moves
}

// KeepsSchedulable reports whether the Node of a Machine that waits for this turn is not cordoned: its policy says so, or the drains in
// progress may need it, since they make no progress. A Machine whose stage annotation requests Cordon is cordoned, and so is one whose
// update in place was allowed and has not completed: it may have begun. While it is not known whether drains make progress, or if no policy
// selects the Machine, maybe for a moment, that stays as it is. present is the NodeMaintenance of the Machine, nil if it has none.
func (t Turn) KeepsSchedulable(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, present *v1alpha1.NodeMaintenance) bool {
	stage, _ := StageOf(m)
	stays := present != nil && present.StaysSchedulable()
	switch {
	case t.Now():
		return false
	case policy == nil && present != nil:
		return stays
	case stage == v1alpha1.StageCordon, IsUpdatedInPlace(m) && UpdateAllowed(m):
		return false
	default:
		return policy != nil && policy.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable || t.Stalled || t.MayStall && stays
	}
}
