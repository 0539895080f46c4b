package machinedrain

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

// Clock has the times of the parts of the drain of a Machine's Node. Each is nil before its part, or if it is unknown. Cluster API's own
// clocks do not run while a hook waits.
type Clock struct {
	// Held is since when pre-drain hooks of other owners have held the drain. It is set until the drain continues or begins: then they are
	// gone, the Machine has a turn, and its NodeMaintenance counts the drain timeout from then. While hooks hold the drain, only this time is
	// set.
	Held *time.Time
	// Waiting is since when the Machine has waited for a turn. No timeout applies to this wait.
	Waiting *time.Time
	// Blocked is since when the drain has neither begun nor waited for a turn, because something prevents it or keeps the manager from
	// observing it. For a Machine that waits for a turn, it is since when the turn cannot be observed. It is kept if the Machine gets the turn
	// meanwhile, see IsGranted.
	Blocked *time.Time
	// Drain is the start of stage Drain.
	Drain *time.Time
	// Drained is the end of the drain, if the drain has not timed out. No drain timeout applies afterwards.
	Drained *time.Time
	// Volumes is the start of the wait for volumes.
	Volumes *time.Time
	// Overdue is since when this process has found the drain timeout to be exceeded. It is not recorded: after a restart or a pause, Pods that
	// have started meanwhile get their final eviction attempts.
	Overdue *time.Time

	isAttempted bool // see Situation.IsAttempted
	resumed     bool // the end of an earlier drain does not count any more
	isFormer    bool // the end is that of an earlier drain: see endedBefore
	outdated    bool // see isOutdated
}

// ClockOf reads the clock from the Machine, where it is recorded in case the workload cluster becomes unreachable or the manager restarts,
// and from the NodeMaintenance. The recorded start of the drain counts: a recreated NodeMaintenance does not reset the clock.
func ClockOf(m *clusterv1.Machine, maintenance lookup.Result[v1alpha1.NodeMaintenance], now time.Time) Clock {
	c := Clock{
		Blocked: credible(m, v1alpha1.DrainBlockedAnnotation, now),
		Drain:   credible(m, v1alpha1.DrainStartedAnnotation, now),
		Drained: drainEnd(m, now),
		Volumes: credible(m, v1alpha1.VolumeWaitStartedAnnotation, now),
	}
	if !m.DeletionTimestamp.IsZero() { // its drain in place may have waited for volumes before
		c.Volumes = notBefore(c.Volumes, &m.DeletionTimestamp.Time)
	}
	if c.continuesAfterTimeout(m, now) {
		c.Volumes = nil
	}
	if !keepsStart(m, maintenance) {
		c.Drain = nil
	}
	if c.Held = heldSince(m, now); c.Held != nil { // what began before does not count
		c.Drained, c.Volumes, c.outdated, c.resumed = nil, nil, isOutdated(m, maintenance), true
	}
	c.isFormer = c.endedBefore(m, maintenance)
	if present, found := maintenance.Get(); found && c.Drain == nil && c.Held == nil {
		c.Drain = notBefore(present.OwnDrainStart(), recordsFrom(m))
		// The drain has continued later, and the clock of this manager is behind.
		if start := present.DrainStart(); start != nil && start.After(now) && !start.Equal(*c.Drain) {
			c.Drain = &now
		}
	}
	switch {
	case c.Drain == nil && waitsForTurn(m):
		c = c.waitingSince(cmp.Or(credible(m, v1alpha1.WaitingForTurnAnnotation, now), RequestedAt(m), &now))
	case c.Volumes != nil:
		c.Blocked = nil
	default:
		c = c.withUsedTurn(maintenance, now)
	}
	return c
}

// withUsedTurn counts from the start of the NodeMaintenance if the drain has begun in a turn that the Machine has recorded before, and
// could not record that it has used.
func (c Clock) withUsedTurn(maintenance lookup.Result[v1alpha1.NodeMaintenance], now time.Time) Clock {
	if present, found := maintenance.Get(); found && present.Spec.Stage == v1alpha1.StageDrain && c.IsGranted() {
		c.Drain, c.Blocked = cmp.Or(notBefore(present.OwnDrainStart(), c.Drain), &now), nil
	}
	return c
}

// IsGranted reports whether the Machine has recorded the turn before the drain, which something may prevent, and has not used it. Its drain
// timeout counts, and the drain gets the whole timeout when it begins.
func (c Clock) IsGranted() bool { return c.Drain != nil && c.Drained == nil && c.Blocked != nil }

// UsesTurn reports whether the desired NodeMaintenance begins the drain in a turn that the Machine has recorded before, while something
// prevented the drain. present is its NodeMaintenance, nil if it has none.
func (c Clock) UsesTurn(present, desired *v1alpha1.NodeMaintenance) bool {
	switch {
	case desired.Spec.Stage != v1alpha1.StageDrain:
		return false
	case present == nil: // otherwise it is recreated
		return c.IsGranted()
	default:
		return c.Drain != nil && present.Spec.Stage != v1alpha1.StageDrain
	}
}

// drainEnd returns when the drain ended, nil if it has not. A record in the future is of a manager whose clock was ahead.
func drainEnd(m *clusterv1.Machine, now time.Time) *time.Time {
	end := recorded(m, v1alpha1.DrainEndedAnnotation)
	if end != nil && end.After(now) {
		return &now
	}
	return end
}

// endedBefore reports whether the end of the drain of a deleted Machine is that of an earlier one: it ended before the deletion, or its
// NodeMaintenance no longer exists, or does not drain the Node. Then the Node must be drained again. The times have whole seconds: an end
// in the second of the deletion counts as that of the present drain, which can delay a release and never causes one.
func (c Clock) endedBefore(m *clusterv1.Machine, maintenance lookup.Result[v1alpha1.NodeMaintenance]) bool {
	if c.Drained == nil || m.DeletionTimestamp.IsZero() {
		return false
	}
	return c.Drained.Before(m.DeletionTimestamp.Time) || maintenance.IsKnown() && !drains(maintenance)
}

// continuesAfterTimeout reports whether a drain had timed out and continues, because its timeout was extended or removed during the wait
// for volumes.
func (c Clock) continuesAfterTimeout(m *clusterv1.Machine, now time.Time) bool {
	if c.Volumes == nil || c.Drain == nil || c.Drained != nil {
		return false
	}
	deadline := c.DrainDeadline(m)
	return deadline == nil || now.Before(*deadline)
}

// keepsStart reports whether the recorded start of the drain may count: the NodeMaintenance drains the Node, or is not known, or the record
// keeps the turn of the Machine, see turnBegan.
func keepsStart(m *clusterv1.Machine, maintenance lookup.Result[v1alpha1.NodeMaintenance]) bool {
	return !maintenance.IsKnown() || drains(maintenance) || turnBegan(m) != nil
}

func drains(maintenance lookup.Result[v1alpha1.NodeMaintenance]) bool {
	present, found := maintenance.Get()
	return found && present.Spec.Stage == v1alpha1.StageDrain
}

// waitingSince returns the clock of a Machine that waits for a turn. The end of an earlier drain does not count: Pods must be drained
// again.
func (c Clock) waitingSince(since *time.Time) Clock {
	return Clock{Held: c.Held, Waiting: since, Blocked: c.Blocked, resumed: true, outdated: c.outdated}
}

// waitsForTurn reports whether the Machine waited for a turn when the manager last observed its NodeMaintenance. An earlier version of the
// manager has recorded this in the condition only. The record counts even if its time is not credible: the error delays a release, and
// causes none.
func waitsForTurn(m *clusterv1.Machine) bool {
	_, recorded := m.Annotations[v1alpha1.WaitingForTurnAnnotation]
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return recorded || condition != nil && condition.Reason == v1alpha1.ReasonWaitingForTurn
}

// hasBegun reports whether the drain has begun, in this or in an earlier maintenance of the Node.
func (c Clock) hasBegun() bool { return c.Drain != nil || c.Drained != nil || c.Volumes != nil }

// WithTurn sets what the observed Turn of the Machine says. The wait for a turn, and what prevented the manager from observing it, do not
// count as drain time. With the turn, a drain that was held continues, with the whole drain timeout.
func (c Clock) WithTurn(turn Turn, m *clusterv1.Machine, now time.Time) Clock {
	switch {
	case c.Drain != nil:
	case !turn.Now():
		c.Blocked = nil
		c = c.waitingSince(cmp.Or(c.Waiting, notBeforeRequest(m, now)))
	case turn.Overdue: // Machines that have waited longer must know, even if the NodeMaintenance cannot be updated, and several must not begin
		c = c.withUnusedTurn(now)
	case c.outdated:
		c = c.WithResumption(*notBeforeRequest(m, now))
	case c.Waiting != nil: // the turn has come
		c.Waiting, c.Blocked = nil, nil
	}
	if turn.Now() && !c.outdated {
		c.Held = nil
	}
	return c
}

// WithBlock starts the clock of a drain that has not begun, or before which an earlier one has ended, see endedBefore: since is when
// something has prevented the drain, or kept the manager from observing it. The drain timeout applies to that, too (M39). After the end of
// the present drain, or while no Pod of a running Machine must be drained, there is nothing to time out.
func (c Clock) WithBlock(m *clusterv1.Machine, since time.Time) Clock {
	if c.Blocked == nil && (!c.hasBegun() || c.isFormer && c.Volumes == nil) {
		c.Blocked = notBeforeRequest(m, since)
	}
	return c
}

// WithGrantedTurn starts the drain of a Machine that waits for a turn and has got it although its NodeMaintenance cannot be read, see
// BlindTurn.
func (c Clock) WithGrantedTurn(now time.Time) Clock {
	if c.Waiting == nil {
		return c
	}
	return c.withUnusedTurn(now)
}

// withUnusedTurn starts the drain of a Machine before it is known whether anything prevents it, see IsGranted.
func (c Clock) withUnusedTurn(now time.Time) Clock {
	started := c.WithResumption(now)
	started.Blocked = cmp.Or(c.Blocked, &now)
	return started
}

// WithResumption counts from start for a drain that had ended: Pods must be drained again, for example because the drain rules were edited
// or the Machine was deleted after a drain in place. Without this, the drain would time out because of a start that may be days ago.
func (c Clock) WithResumption(start time.Time) Clock {
	return Clock{Held: c.Held, Drain: &start, resumed: true, outdated: c.outdated}
}

// continuedFrom returns from when the drain timeout counts for a drain that had ended and continues now. The time in which Pods were
// drained before, since the request, counts: otherwise, Pods that return at once again and again would hold the Machine for ever. If the
// drain had ended for finalAttemptPeriod, it has at least this time, or half of a shorter timeout, for the attempts of the Pods.
func (c Clock) continuedFrom(s Situation, m *clusterv1.Machine, now time.Time) time.Time {
	if s.Restarts || c.Drain == nil || c.Drained == nil || !c.Drained.Before(now) { // the clock of the manager that has recorded the end was ahead
		return now
	}
	used, timeout := c.Drained.Sub(*notBefore(c.Drain, RequestedAt(m))), DrainTimeout(m)
	if now.Sub(*c.Drained) >= finalAttemptPeriod { // the Node was not empty for a moment only
		used = min(used, timeout-min(finalAttemptPeriod, timeout/2))
	}
	return now.Add(-max(used, 0))
}

// notBefore returns the later of two times. It returns nil if t is nil.
func notBefore(t, earliest *time.Time) *time.Time {
	if t != nil && earliest != nil && t.Before(*earliest) {
		return earliest
	}
	return t
}

// notBeforeRequest returns t, but not a time before the request for the drain: the clock of this manager may be behind.
func notBeforeRequest(m *clusterv1.Machine, t time.Time) *time.Time {
	return notBefore(&t, RequestedAt(m))
}

// recorded returns the time that the present drain of a Machine has recorded, nil if it has recorded none. A time before the request for
// the drain is not its own: an earlier drain has recorded it, before clusterctl move, or another actor has copied it, for example from the
// template of a MachineSet.
func recorded(m *clusterv1.Machine, annotation string) *time.Time {
	t, from := timeIn(m, annotation), recordsFrom(m)
	if t == nil || from != nil && t.Before(from.Truncate(time.Second)) {
		return nil
	}
	return t
}

// recordsFrom returns the time from which on the present drain of a Machine may have recorded something. If its drain in place continues
// after its deletion, this is before the deletion.
func recordsFrom(m *clusterv1.Machine) *time.Time {
	if requested := drainRequested(m); requested != nil && mayDrainInPlace(m) {
		return requested
	}
	return RequestedAt(m)
}

// timeIn returns the time in an annotation, nil if it has none.
func timeIn(m *clusterv1.Machine, annotation string) *time.Time {
	return parse(m.Annotations[annotation])
}

// parse returns the time that an annotation records, nil if it is not one.
func parse(value string) *time.Time {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil
	}
	return &t
}

// credible returns the time that the present drain has recorded, nil if it has recorded nothing, or a time in the future.
func credible(m *clusterv1.Machine, annotation string, now time.Time) *time.Time {
	if t := recorded(m, annotation); t != nil && !t.After(now) {
		return t
	}
	return nil
}

// VolumeWaitStart returns the start of the wait for volumes: the recorded start, or else the end of the drain. It is not before the request
// and the start of the drain, even if the clock of a manager was behind, or if the Node was drained before its Machine was deleted.
func (c Clock) VolumeWaitStart(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance, now time.Time) time.Time {
	if c.Volumes != nil {
		return *c.Volumes
	}
	start := now
	if deadline := c.DrainDeadline(m); deadline != nil && deadline.Before(start) && c.Overdue == nil { // else the drain has just timed out
		start = *deadline
	}
	drained := meta.FindStatusCondition(maintenance.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
	if drained != nil && drained.Status == metav1.ConditionTrue && drained.LastTransitionTime.Time.Before(start) {
		start = drained.LastTransitionTime.Time
	}
	for _, earliest := range []*time.Time{c.Drain, RequestedAt(m)} {
		if earliest != nil && start.Before(*earliest) {
			start = *earliest
		}
	}
	return start
}

// DrainDeadline returns when the drain times out, nil if it has no timeout or if no timeout applies now. The clock starts with stage Drain
// of the NodeMaintenance. If that has not started, it starts when something has prevented the drain, or kept the manager from observing it,
// and not before the request. It does not run while the Machine waits for a turn, and not after the drain has ended, see endedBefore.
func (c Clock) DrainDeadline(m *clusterv1.Machine) *time.Time {
	start := c.Drain
	switch {
	case c.Drained != nil && (c.Volumes != nil || !c.isFormer):
		return nil
	case c.Waiting != nil:
		return nil
	case c.IsGranted(): // maybe in place, long before the deletion: no Pod was drained
		start = notBeforeRequest(m, *start)
	case c.Drained != nil || start == nil:
		if start = c.Blocked; start != nil {
			start = notBeforeRequest(m, *start)
		}
	}
	return deadline(start, DrainTimeout(m))
}

// finalAttemptPeriod is how long a Machine waits after its drain timeout for its NodeMaintenance to make the final eviction attempts.
const finalAttemptPeriod = evacuation.EvictionMargin

// ReleaseAt returns when a Machine whose drain has not completed is released, nil if the drain has no timeout. This is the deadline, unless
// the final eviction attempts have not been made by then: because the timeout was set late, the Machine was paused or no manager ran. Then
// the Machine waits for them, and for the grace periods of the Pods that terminate. The wait ends finalAttemptPeriod after this process has
// begun it, or with the end that its NodeMaintenance has recorded.
func (c Clock) ReleaseAt(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance, now time.Time) *time.Time {
	deadline := c.DrainDeadline(m)
	if !c.AwaitsFinalAttempts(m, maintenance, now) {
		return deadline
	}
	at := ptr.Deref(c.Overdue, now).Add(finalAttemptPeriod)
	latest := at.Add(draintimeout.MaxGracePeriod)
	if status := maintenance.Status.DrainTimeout; status != nil && status.FinalAttemptEndTime != nil {
		switch end := status.FinalAttemptEndTime.Time; {
		case end.After(latest):
			at = latest
		case end.After(at):
			at = end
		}
	}
	return &at
}

// FinalAttemptsMessage returns what a Machine waits for whose drain timeout is exceeded, as the start of the message of its condition. It
// is empty while the timeout is not exceeded.
func (c Clock) FinalAttemptsMessage(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance, now time.Time) string {
	if !c.AwaitsFinalAttempts(m, maintenance, now) {
		return ""
	}
	what := "the final eviction attempts"
	attempt := meta.FindStatusCondition(maintenance.Status.Conditions, v1alpha1.NodeMaintenanceFinalEvictionAttempt)
	if attempt != nil && attempt.Reason == v1alpha1.ReasonPodsTerminating && attempt.ObservedGeneration == maintenance.Generation {
		what = "the grace periods of the Pods that terminate"
	}
	return fmt.Sprintf("nodeDrainTimeoutSeconds is exceeded; waiting until %s at the latest for %s. ", c.ReleaseAt(m, maintenance, now).UTC().Format(time.RFC3339),
		what)
}

// HasExceeded reports whether the drain timeout is exceeded, and the wait for volumes has not begun.
func (c Clock) HasExceeded(m *clusterv1.Machine, now time.Time) bool {
	deadline := c.DrainDeadline(m)
	return deadline != nil && !now.Before(*deadline) && c.Volumes == nil
}

// AwaitsFinalAttempts reports whether a Machine whose drain timeout is exceeded waits for the final eviction attempts of its
// NodeMaintenance. It does not if the NodeMaintenance is unknown or does not drain the Node.
func (c Clock) AwaitsFinalAttempts(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance, now time.Time) bool {
	return c.HasExceeded(m, now) && maintenance != nil && maintenance.Spec.Stage == v1alpha1.StageDrain && !c.isAttempted
}

// VolumeDeadline returns when the wait for volumes times out, nil if it has no timeout or has not started.
func (c Clock) VolumeDeadline(m *clusterv1.Machine) *time.Time {
	return deadline(c.Volumes, volumeTimeout(m))
}

func volumeTimeout(m *clusterv1.Machine) time.Duration {
	return seconds(m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds)
}

// DrainTimeout returns the drain timeout of a Machine, 0 if it has none.
func DrainTimeout(m *clusterv1.Machine) time.Duration {
	return seconds(m.Spec.Deletion.NodeDrainTimeoutSeconds)
}

func seconds(timeout *int32) time.Duration {
	return time.Duration(ptr.Deref(timeout, 0)) * time.Second
}

// deadline returns nil if there is no timeout: 0 means no timeout.
func deadline(start *time.Time, timeout time.Duration) *time.Time {
	if start == nil || timeout <= 0 {
		return nil
	}
	return ptr.To(start.Add(timeout))
}

// Record records the clock on a Machine, and removes the records of waits that are over. A time that only serves a timeout that the Machine
// does not have is not recorded.
func (c Clock) Record(m *clusterv1.Machine) (changed bool) {
	hasDrainTimeout, hasTimeout := DrainTimeout(m) > 0, hasTimeout(m)
	changed = c.removeFormer(m)
	set := func(annotation string, t *time.Time) {
		if present := recorded(m, annotation); present == nil || !present.Equal(t.Truncate(time.Second)) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, annotation, t.UTC().Format(time.RFC3339))
			changed = true
		}
	}
	keep := func(annotation string, t *time.Time, isNeeded bool) {
		switch {
		case t == nil:
			changed = removeAnnotations(m, annotation) || changed
		case isNeeded:
			set(annotation, t)
		}
	}
	if c.Drain != nil && (hasDrainTimeout || c.Held != nil) { // after a hold also for a timeout that is set later
		set(v1alpha1.DrainStartedAnnotation, c.Drain)
	}
	if c.Drained != nil && hasTimeout {
		set(v1alpha1.DrainEndedAnnotation, c.Drained)
	}
	keep(v1alpha1.DrainHeldAnnotation, c.Held, true)
	keep(v1alpha1.VolumeWaitStartedAnnotation, c.Volumes, hasTimeout)
	keep(v1alpha1.WaitingForTurnAnnotation, c.Waiting, true) // a timeout may be set while the workload cluster is unreachable
	keep(v1alpha1.DrainBlockedAnnotation, c.Blocked, hasDrainTimeout)
	return changed
}

// removeFormer removes what a Machine has recorded of a drain that does not count any more, because it has ended or was held.
func (c Clock) removeFormer(m *clusterv1.Machine) (changed bool) {
	waitsAgain := c.Waiting != nil && turnBegan(m) == nil
	if c.resumed {
		changed = removeAnnotations(m, v1alpha1.DrainEndedAnnotation)
	}
	switch {
	case c.Held != nil && c.Drain == nil, waitsAgain:
		return removeAnnotations(m, v1alpha1.DrainStartedAnnotation) || changed
	case c.Drain == nil && DrainTimeout(m) <= 0 && recorded(m, v1alpha1.DrainStartedAnnotation) != nil: // it must not count for a timeout that is set later
		return removeAnnotations(m, v1alpha1.DrainStartedAnnotation) || changed
	case c.Held == nil && c.Drained != nil && DrainTimeout(m) <= 0: // Pods may have to be drained again, from another start
		return removeAnnotations(m, v1alpha1.DrainStartedAnnotation) || changed
	}
	return changed
}

// RestartsForDaemonSets reports whether the drain timeout of a Machine whose drain has ended starts again when the Pods of DaemonSets are
// to be drained. It does once: while the NodeMaintenance cannot be updated, the timeout counts.
func RestartsForDaemonSets(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) bool {
	start, drained := recorded(m, v1alpha1.DrainStartedAnnotation), meta.FindStatusCondition(maintenance.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
	return recorded(m, v1alpha1.DrainEndedAnnotation) != nil || recorded(m, v1alpha1.VolumeWaitStartedAnnotation) != nil ||
		start != nil && drained != nil && start.Before(drained.LastTransitionTime.Time)
}

func hasTimeout(m *clusterv1.Machine) bool {
	return DrainTimeout(m) > 0 || volumeTimeout(m) > 0
}
