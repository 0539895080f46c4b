package machine

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// awaitDrained waits until the Node is drained or the drain times out.
func (r *Reconciler) awaitDrained(ctx context.Context, s *scope) (outcome, error) {
	observeDrain(s)
	if s.drainOver = s.drainOver || machinedrain.Drained(s.maintenance); s.drainOver {
		return outcome{}, nil
	}
	reason, message := machinedrain.DrainProgress(s.maintenance, r.maintenanceFailure(ctx, s))
	return s.untilDrainDeadline(outcome{verdict: wait, reason: reason, message: message}), nil
}

// awaitVolumesDetached waits until the volumes that must detach from the Node have detached, or the wait times out.
func (r *Reconciler) awaitVolumesDetached(ctx context.Context, s *scope) (outcome, error) {
	if !machinedrain.WaitsForVolumes(s.machine, s.node) {
		return outcome{}, nil
	}
	if machinedrain.DaemonSetRuleLifted(s.maintenance) { // the wait for volumes precedes the drain of the Pods of DaemonSets
		s.volumesOver = true
		return outcome{}, nil
	}
	clock := s.clock()
	start := clock.VolumeWaitStart(s.machine, s.maintenance, s.now)
	clock.Volumes = &start
	s.volumeWait = &start
	decision, known, err := r.volumes(ctx, s)
	if err != nil {
		return r.unreachable(ctx, s, err)
	}
	observeVolumes(s, decision)
	if known && decision.Detached() {
		s.volumesOver = true
		return outcome{}, nil
	}
	waiting := outcome{verdict: wait} // no reason and message: the first lists usually arrive within a second
	if known {
		waiting.reason, waiting.message = v1alpha1.ReasonWaitingForVolumeDetach, decision.Message(start)
	}
	timedOut, waiting := s.until(clock.VolumeDeadline(s.machine), waiting)
	if timedOut {
		s.volumesTimedOut(waiting)
		return outcome{}, nil
	}
	return waiting, nil
}

// awaitDaemonSets drains the Pods of DaemonSets as the last step, if the policy requires it. It lifts the drain rule that skips them;
// awaitDrained then waits for them to terminate.
func (r *Reconciler) awaitDaemonSets(ctx context.Context, s *scope) (outcome, error) {
	if !machinedrain.DrainsDaemonSets(s.policy) || machinedrain.DaemonSetRuleLifted(s.maintenance) || len(s.timedOut) > 0 {
		return outcome{}, nil
	}
	desired, compiled, err := r.desired(ctx, s, v1alpha1.DaemonSetPodsDrain)
	if err != nil || len(compiled.Problems) > 0 {
		return outcome{}, err // requestMaintenance waits for invalid rules to be fixed
	}
	if result, err := r.update(ctx, s, desired); err != nil || result.verdict == wait {
		return result, err
	}
	ctrl.LoggerFrom(ctx).Info("All other Pods are evicted and the volumes detached, draining the Pods of DaemonSets")
	waiting := outcome{verdict: wait, reason: v1alpha1.ReasonMachineDraining, message: "The Pods of DaemonSets go now, after all others and the volumes"}
	_, waiting = s.until(s.clock().DrainDeadline(s.machine), waiting)
	return waiting, nil
}

// expired returns whether a deadline is exceeded while the drain cannot be observed: the drain timeout, or the volume detach timeout once
// the drain is over. If so, the Machine is released regardless of what it waits for. Otherwise expired sets the time of the next
// reconciliation.
func (s *scope) expired(waiting *outcome) (over bool) {
	clock := s.clock()
	if clock.Volumes == nil {
		if over, *waiting = s.until(clock.DrainDeadline(s.machine), *waiting); over {
			s.drainTimedOut(*waiting)
		}
		return over
	}
	if over, *waiting = s.until(clock.VolumeDeadline(s.machine), *waiting); over {
		s.drainOver = true
		s.volumesTimedOut(*waiting)
	}
	return over
}

// untilDrainDeadline waits until the drain times out and every Pod has had its final eviction attempt. After that, the next step runs.
func (s *scope) untilDrainDeadline(waiting outcome) outcome {
	timedOut, waiting := s.until(s.clock().ReleaseAt(s.machine, s.maintenance), waiting)
	if timedOut {
		s.drainTimedOut(waiting)
		return outcome{}
	}
	return waiting
}

// until returns whether a deadline is exceeded. Otherwise it limits the wait to the deadline and to referencedTTL, because some changes
// trigger no event.
func (s *scope) until(deadline *time.Time, waiting outcome) (over bool, _ outcome) {
	if deadline != nil && !s.now.Before(*deadline) {
		return true, waiting
	}
	if waiting.at.IsZero() {
		waiting.at = s.now.Add(referencedTTL)
	}
	if deadline != nil && deadline.Before(waiting.at) {
		waiting.at = *deadline
	}
	return false, waiting
}

func (s *scope) clock() machinedrain.Clock {
	clock := machinedrain.ClockOf(s.machine, s.maintenance)
	if s.mayDrain {
		clock = clock.WithTurn(s.now)
	}
	if clock.Volumes == nil {
		clock.Volumes = s.volumeWait
	}
	return clock
}

func (s *scope) drainTimedOut(waited outcome) {
	s.drainOver = true
	s.timedOut = append(s.timedOut, "The drain has run out of time (nodeDrainTimeoutSeconds): "+waited.message)
}

func (s *scope) volumesTimedOut(waited outcome) {
	s.volumesOver = true
	s.timedOut = append(s.timedOut, "The volumes have run out of time (nodeVolumeDetachTimeoutSeconds): "+waited.message)
}
