package machinedrain

import (
	"cmp"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

// Situation is what the manager knows about the drain of a Machine's Node, besides what the Machine has recorded. The zero value means that
// it knows nothing.
type Situation struct {
	// HeldByHooks means that hooks of other owners hold the drain, see HoldingHooks. Nothing else counts then.
	HeldByHooks bool
	Maintenance lookup.Result[v1alpha1.NodeMaintenance]
	// Turn is nil until it was observed.
	Turn *Turn
	// NeedsTurn means that the drain, if it has not begun, may have to wait for a turn. It waits until the turn was observed or granted.
	NeedsTurn bool
	// TurnGranted means that the drain may start although the turn cannot be observed, see BlindTurn.
	TurnGranted bool
	// BlockedSince is since when something has prevented the drain or kept the manager from observing it, zero if nothing has.
	BlockedSince time.Time
	// BlockEnded means that what the Machine has recorded about that is over.
	BlockEnded bool
	// IsDrained means that the drain has ended, and IsResumed that Pods must be drained again although it had, or that a recorded turn is used
	// only now. Restarts means that the drain timeout starts again, for the Pods of DaemonSets.
	IsDrained, IsResumed, Restarts bool
	// OverdueSince is since when this process has found the drain timeout to be exceeded, zero if it has not.
	OverdueSince time.Time
	// IsAttempted means that this process has found that all Pods which must be evicted have had their final eviction attempts and grace
	// periods.
	IsAttempted bool
	// VolumeWaitStart is the start of the wait for volumes, nil if it has not begun.
	VolumeWaitStart *time.Time
}

// continues reports whether Pods must be drained although the drain had ended.
func (s Situation) continues() bool { return s.Restarts || s.IsResumed }

// ClockIn returns the clock of a Machine in a Situation.
func ClockIn(s Situation, m *clusterv1.Machine, now time.Time) Clock {
	if s.HeldByHooks {
		return Clock{Held: cmp.Or(heldSince(m, now), notBeforeRequest(m, now)), resumed: true}
	}
	c := ClockOf(m, s.Maintenance, now)
	if s.BlockEnded {
		c.Blocked = nil
	}
	if s.Turn != nil {
		c = c.WithTurn(*s.Turn, m, now)
	}
	if s.NeedsTurn && s.Turn == nil && !c.hasBegun() && c.Waiting == nil {
		c = c.waitingSince(notBeforeRequest(m, now))
	}
	if !s.BlockedSince.IsZero() {
		c = c.WithBlock(m, s.BlockedSince)
	}
	if s.TurnGranted {
		c = c.WithGrantedTurn(now)
	}
	if s.continues() {
		c = c.WithResumption(c.continuedFrom(s, m, now))
	}
	if c.Held != nil { // its NodeMaintenance is suspended, so the rest is not known
		return c
	}
	if !s.OverdueSince.IsZero() {
		c.Overdue = &s.OverdueSince
	}
	c.isAttempted = s.IsAttempted
	if s.IsDrained { // an earlier drain, see endedBefore, is this one if it has ended: its end counts as one at the time of the deletion
		c.Drained, c.Blocked, c.isFormer = notBefore(cmp.Or(c.Drained, &now), RequestedAt(m)), nil, false
	}
	if c.Volumes == nil {
		c.Volumes = s.VolumeWaitStart
	}
	return c
}

// Part is a part of a drain that a deadline limits.
type Part string

// Parts.
const (
	PartDrain   Part = "Drain"
	PartVolumes Part = "Volumes"
)

// Deadline returns when the present part of the drain times out, nil if it does not.
func (c Clock) Deadline(m *clusterv1.Machine) (at *time.Time, of Part) {
	if c.Volumes != nil {
		return c.VolumeDeadline(m), PartVolumes
	}
	return c.DrainDeadline(m), PartDrain
}

// HasTimedOut reports whether the drain had timed out before the wait for volumes began. Otherwise it had ended. That counts only with the
// Pods that the watch had delivered, until they are confirmed as the last step: if the wait for volumes ends before, Cluster API must drain
// the Node.
func (c Clock) HasTimedOut() bool { return c.Volumes != nil && c.Drain != nil && c.Drained == nil }

// BlindPeriod is for how long a process must have been unable to observe a drain, or to begin it, before it ends the wait. After a restart,
// the deadline may have passed without final eviction attempts, and a first attempt to connect fails easily. The ClusterCache tries again
// after 10 to 30 s.
const BlindPeriod = time.Minute

// contactInterval is how long a Machine waits after a failed attempt to reach its workload cluster for the next one, and for its drain to
// begin if that succeeds. The ClusterCache makes the next attempt after 10 to 30 s, and waits 5 s for an answer.
const contactInterval = 45 * time.Second

// BlindDeadline returns when a Machine is released whose drain this process has been unable to observe, or to begin, since a time, nil if
// it is not. This is the deadline, but not before BlindPeriod has passed, also if the timeout is shorter. failed is when an attempt to
// reach the workload cluster last failed, zero if none has: see afterNextAttempt.
func (c Clock) BlindDeadline(m *clusterv1.Machine, since, failed time.Time) (at *time.Time, of Part) {
	at, of = c.Deadline(m)
	if at == nil {
		return nil, of
	}
	return new(afterNextAttempt(*notBefore(at, new(since.Add(BlindPeriod))), failed)), of
}

// afterNextAttempt returns when a wait for a workload cluster ends: at its deadline, if an attempt to reach the cluster has failed after
// that. If the last failed attempt was before, the cluster may have become reachable since: the wait continues until another attempt fails,
// at most for contactInterval after the last.
func afterNextAttempt(deadline, failed time.Time) time.Time {
	if next := failed.Add(contactInterval); failed.Before(deadline) && next.After(deadline) {
		return next
	}
	return deadline
}
