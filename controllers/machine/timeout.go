package machine

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// pollInterval is how often a waiting Machine is reconciled without an event, because some changes trigger none.
const pollInterval = 15 * time.Second

func (s *scope) clock() machinedrain.Clock {
	return machinedrain.ClockIn(s.Situation, s.machine, s.now)
}

// recordAfter is how long a drain must be blocked before the Machine records it. Many blocks last less, such as that of a NodeMaintenance
// that was just created. A restart of the manager delays the deadline by at most this time.
const recordAfter = 5 * time.Second

// recordDelayedError is the error of recordClock if the clock of the drain is recorded later, see nextRecord. Until then, the condition of
// the Machine is not changed either: it may be the only record of a wait for a turn.
type recordDelayedError struct{ due time.Time }

// Error implements error.
func (recordDelayedError) Error() string {
	return "the clock was recorded ten times within seconds: another manager may replace it each time"
}

// nextRecord returns when the clock of a drain may be recorded: now, unless two managers replace each other's records, see
// Limiter.NextUrgent. The record of a hold protects the Pods, and is never delayed. Those of a running Machine are limited by mayPatch.
func (r *Reconciler) nextRecord(s *scope) time.Time {
	if s.HeldByHooks || s.machine.DeletionTimestamp.IsZero() {
		return s.now
	}
	return r.records.NextUrgent(client.ObjectKeyFromObject(s.machine), s.now)
}

// recordClock records the clock on the Machine if there is a timeout. The deadline must be known even if the workload cluster is
// unreachable. It fails with recordDelayedError if it has recorded the clock too often.
func (r *Reconciler) recordClock(ctx context.Context, s *scope) error {
	clock, changed := s.clock(), s.machine.DeepCopy()
	if clock.Blocked != nil && !clock.IsGranted() && s.now.Sub(*clock.Blocked) < recordAfter {
		clock.Blocked = nil
	}
	if recorded, limited := clock.Record(changed), s.policySettles.IsZero() && clock.RecordLimit(changed, s.policy); !recorded && !limited {
		return nil
	}
	if due := r.nextRecord(s); s.now.Before(due) {
		return errors.Wrapf(recordDelayedError{due}, "recording the clock of the drain on Machine %s", klog.KObj(s.machine))
	}
	if !r.mayPatch(s) {
		return errors.Wrapf(errRestored, "recording the clock of the drain on Machine %s", klog.KObj(s.machine))
	}
	err := r.Client.Patch(ctx, changed, client.MergeFrom(s.machine))
	if err == nil || answers.IsUnanswered(err) { // without an answer, the API server may have the record in a moment
		r.turnRecorded(s)
	}
	if err != nil {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "recording the clock of the drain on Machine %s", klog.KObj(s.machine))
	}
	r.records.Record(client.ObjectKeyFromObject(s.machine), s.now) // not one that the API server refuses: it is reported
	s.machine = changed
	return nil
}

// limit limits a wait during which the drain cannot be observed, or something prevents it from beginning. A process that has not tried to
// connect to the workload cluster decides nothing: what it would find there is unknown. A Machine whose drain is held, or that waits for a
// turn, is never released; see machinedrain.BlindTurn and turnOfBlocked.
func (r *Reconciler) limit(ctx context.Context, s *scope, waiting outcome) outcome {
	if s.HeldByHooks {
		r.endBlock(s)
		return s.requeueBy(nil, waiting)
	}
	s.blind = true
	if s.BlockedSince = r.countBlock(ctx, s); s.BlockedSince.IsZero() {
		return s.requeueBy(new(s.now.Add(contactRetry)), waiting)
	}
	remote := r.readable(ctx, s, waiting)
	r.observeBlock(s, remote != nil)
	if s.hasUnreadPolicy() { // its maxParallelDrains may delay the drain: Machines that wait for turns are not released together
		waiting.message += "\n" + s.unreadProblem().Message
		return s.requeueBy(nil, waiting)
	}
	mayHaveNode := remote != nil && s.findNodeInCache(ctx, remote)
	s.NeedsTurn = machinedrain.NeedsTurnAgain(s.machine, s.policy) ||
		mayHaveNode && machinedrain.NeedsTurn(s.machine, s.policy, s.nodeIn(ctx, remote), s.maintenance, s.now)
	if clock := s.clock(); clock.Waiting != nil {
		at, granted, problem := r.blindTurn(ctx, s, clock)
		turn := r.turnOfBlocked(ctx, s, remote)
		if s.TurnGranted = granted || turn != nil && turn.Now(); !s.TurnGranted {
			if turn != nil {
				waiting.message += "\n" + turn.Message(s.cluster.Name)
			} else if problem != "" {
				waiting.message += "\n" + problem
			}
			return s.requeueBy(at, waiting)
		}
		ctrl.LoggerFrom(ctx).Info("The Machine gets a turn although its drain cannot begin", "reason", waiting.reason, "message", waiting.message)
	}
	return s.untilDeadline(waiting, r.failedContact(ctx, s))
}

// countBlock returns since when this process has found the drain of the Machine to be blocked, zero if that does not count yet, because the
// process has not tried to connect. If the infrastructure of the Cluster is not provisioned, the ClusterCache does not try:
// BlindPeriod without an attempt counts as a failed one, since the status of a Cluster is empty for a moment after clusterctl move.
func (r *Reconciler) countBlock(ctx context.Context, s *scope) time.Time {
	hasTried := r.hasTriedToConnect(ctx, s)
	if !hasTried && isProvisioned(s.cluster) {
		return time.Time{}
	}
	since := r.beginBlock(s)
	if !hasTried && s.now.Sub(since) < machinedrain.BlindPeriod {
		return time.Time{}
	}
	return since
}

// findNodeInCache looks up the Node of a Machine that is blocked and has no nodeRef: what blocks it may precede findNode. It returns false
// if no Node has its provider ID. If the Nodes cannot be read, the Machine may have one.
func (s *scope) findNodeInCache(ctx context.Context, remote client.Client) (mayHaveNode bool) {
	if s.machine.Status.NodeRef.IsDefined() {
		return true
	}
	name, err := nodeNames(ctx, remote)(s.machine)
	s.machine.Status.NodeRef.Name, s.isNodeLookedUp = name, name != ""
	return err != nil || name != ""
}

// beginBlock returns since when this process has found the drain of the Machine to be blocked, which begins now unless it has before.
func (r *Reconciler) beginBlock(s *scope) time.Time {
	known := r.blockOf(s.machine)
	if known.since.IsZero() {
		known = block{since: s.now, hasTurn: s.Turn != nil}
		r.blocked.Store(client.ObjectKeyFromObject(s.machine), known)
	}
	return known.since
}

// block is what prevents the drain of a Machine from beginning, or keeps this process from observing it.
type block struct {
	since   time.Time // zero: it has ended
	alone   time.Time // since when the workload cluster can be read all the same, zero if it cannot
	hasTurn bool      // the turn was observed all the same
	ended   time.Time
}

// observeBlock remembers whether the workload cluster can be read although the Machine is blocked. If not, what blocks the Machine may
// block all others.
func (r *Reconciler) observeBlock(s *scope, isReadable bool) {
	known := r.blockOf(s.machine)
	switch {
	case !isReadable:
		known.alone, known.hasTurn = time.Time{}, s.Turn != nil
	case known.alone.IsZero():
		known.alone = s.now
	}
	r.blocked.Store(client.ObjectKeyFromObject(s.machine), known)
}

// hasTriedToConnect reports whether this process has tried to connect to the workload cluster. It does not try while the infrastructure of
// the Cluster is not provisioned.
func (r *Reconciler) hasTriedToConnect(ctx context.Context, s *scope) bool {
	return !r.Clusters.HealthState(ctx, s.nameOfCluster()).LastProbeTime.IsZero()
}

// failedContact returns when an attempt to reach the workload cluster last failed, zero if this process has not found that one did. The
// failure also counts after an attempt that succeeds: then the drain must have time to begin.
func (r *Reconciler) failedContact(ctx context.Context, s *scope) time.Time {
	remembered := r.memoryOf(s.machine)
	if state := r.Clusters.HealthState(ctx, s.nameOfCluster()); state.ConsecutiveFailures > 0 {
		remembered.failedContact = state.LastProbeTime
	}
	return remembered.failedContact
}

// isProvisioned reports whether the infrastructure of a Cluster is provisioned, as its status says. It returns true if the Cluster was not
// read.
func isProvisioned(cluster *clusterv1.Cluster) bool {
	return cluster == nil || ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false)
}

// endBlock ends what has prevented the drain from beginning, or kept the manager from observing it. What follows is another block.
func (r *Reconciler) endBlock(s *scope) {
	if !r.blockOf(s.machine).since.IsZero() {
		r.blocked.Store(client.ObjectKeyFromObject(s.machine), block{ended: s.now})
	}
	r.memoryOf(s.machine).unconnected = time.Time{}
	s.BlockedSince, s.BlockEnded = time.Time{}, true
}

// untilDeadline limits a wait during which the drain cannot be observed. If a deadline is exceeded, the drain timeout, or the volume detach
// timeout once the drain is over, it returns the outcome that releases the Machine regardless of what it waits for. The volume detach
// timeout does not end the drain: nothing has confirmed that no Pod is left. See failedContact for failed.
func (s *scope) untilDeadline(waiting outcome, failed time.Time) outcome {
	clock := s.clock()
	switch deadline, part := clock.BlindDeadline(s.machine, s.BlockedSince, failed); {
	case s.confirming: // what the deadlines limit is over
		return s.requeueBy(nil, waiting)
	case !s.exceeds(deadline):
		return s.requeueBy(deadline, waiting)
	case part == machinedrain.PartVolumes:
		s.drainOver = clock.HasTimedOut()
		s.volumesTimedOutUnobserved(waiting.message)
	default:
		s.drainTimedOut(waiting.message)
	}
	return s.result()
}

// untilDrainDeadline waits until the drain times out and every Pod has had its final eviction attempt. After that, the next step runs.
func (r *Reconciler) untilDrainDeadline(s *scope, waiting outcome) outcome {
	r.observeOverdue(s)
	clock := s.clock()
	releaseAt := clock.ReleaseAt(s.machine, s.maintenance, s.now)
	if s.exceeds(releaseAt) {
		s.drainTimedOut(waiting.message)
		return outcome{}
	}
	waiting.message = clock.FinalAttemptsMessage(s.machine, s.maintenance, s.now) + waiting.message
	return s.requeueBy(releaseAt, waiting)
}

// observeOverdue sets since when this process has found the drain timeout to be exceeded, which is kept in memory: see Clock.Overdue.
func (r *Reconciler) observeOverdue(s *scope) {
	s.IsAttempted = r.Clusters.IsAttempted(s.maintenanceRequest(), s.maintenance)
	remembered, clock := r.memoryOf(s.machine), s.clock()
	if !clock.HasExceeded(s.machine, s.now) {
		remembered.overdue = time.Time{}
		return
	}
	if remembered.overdue.Before(*clock.DrainDeadline(s.machine)) { // or zero
		remembered.overdue = s.now
	}
	s.OverdueSince = remembered.overdue
}

func (s *scope) exceeds(deadline *time.Time) bool { return deadline != nil && !s.now.Before(*deadline) }

// requeueBy limits a wait to pollInterval, unless it has a limit, and to a deadline.
func (s *scope) requeueBy(deadline *time.Time, waiting outcome) outcome {
	if waiting.at.IsZero() {
		waiting.at = s.now.Add(pollInterval)
	}
	if deadline != nil && deadline.Before(waiting.at) {
		waiting.at = *deadline
	}
	return waiting
}

func (s *scope) drainTimedOut(waitedFor string) {
	s.drainOver = true
	s.drainTimeoutMessage = history.DrainExceeded + waitedFor
	s.timedOut = append(s.timedOut, s.drainTimeoutMessage)
}

func (s *scope) volumesTimedOut(waitedFor string) {
	s.endVolumeWait(history.VolumesExceeded + waitedFor)
}

// volumesTimedOutUnobserved is volumesTimedOut while it is not known whether volumes are attached.
func (s *scope) volumesTimedOutUnobserved(waitedFor string) {
	message := "The wait for volumes, which cannot be observed, exceeded nodeVolumeDetachTimeoutSeconds: " + waitedFor
	if !s.drainOver && !s.machine.DeletionTimestamp.IsZero() {
		message += machinedrain.DrainedByClusterAPI
	}
	s.endVolumeWait(message)
}

func (s *scope) endVolumeWait(message string) {
	s.volumesOver, s.volumesTimeoutMessage = true, message
	s.timedOut = append(s.timedOut, s.volumesTimeoutMessage)
}
