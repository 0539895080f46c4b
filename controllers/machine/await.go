package machine

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machines"
)

// awaitDrained waits until no Pod is left that must go, or the drain's time is up.
func (r *Reconciler) awaitDrained(ctx context.Context, s *scope) (outcome, error) {
	observeDrain(s)
	if s.drainOver = s.drainOver || machines.Drained(s.maintenance); s.drainOver {
		return outcome{}, nil
	}
	reason, message := machines.DrainProgress(s.maintenance, r.maintenanceFailure(ctx, s))
	return s.untilDrainDeadline(outcome{verdict: wait, reason: reason, message: message}), nil
}

// awaitVolumesDetached waits until the volumes that must detach from the Node have, or the time for that is up.
func (r *Reconciler) awaitVolumesDetached(ctx context.Context, s *scope) (outcome, error) {
	if !machines.WaitsForVolumes(s.machine, s.node) {
		return outcome{}, nil
	}
	if machines.Lifted(s.maintenance) { // this is past
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
	waiting := outcome{verdict: wait} // for a moment, which isn't worth a word
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

// awaitDaemonSets has the Pods of DaemonSets go, last of all, where the policy says so. Once the rule that skips them is lifted,
// awaitDrained waits for them.
func (r *Reconciler) awaitDaemonSets(ctx context.Context, s *scope) (outcome, error) {
	if !machines.DrainsDaemonSets(s.policy) || machines.Lifted(s.maintenance) || len(s.timedOut) > 0 {
		return outcome{}, nil
	}
	desired, compiled, err := r.desired(ctx, s, v1alpha1.DaemonSetPodsDrain)
	if err != nil || len(compiled.Problems) > 0 {
		return outcome{}, err // requestMaintenance waits for rules to be mended
	}
	if result, err := r.update(ctx, s, desired); err != nil || result.verdict == wait {
		return result, err
	}
	ctrl.LoggerFrom(ctx).Info("All else is gone, volumes included: the Pods of DaemonSets go")
	waiting := outcome{verdict: wait, reason: v1alpha1.ReasonMachineDraining, message: "The Pods of DaemonSets go now, after all others and the volumes"}
	_, waiting = s.until(s.clock().DrainDeadline(s.machine), waiting)
	return waiting, nil
}

// expired is for the time when the drain can't be observed. It says whether the drain's time is up, or that of the volumes where
// the drain is over: the Machine is released then, whatever it waits for.
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

// untilDrainDeadline waits, at most as long as the drain has time, and until each Pod was asked to leave. After that the next step is
// due.
func (s *scope) untilDrainDeadline(waiting outcome) outcome {
	timedOut, waiting := s.until(s.clock().ReleaseAt(s.machine, s.maintenance), waiting)
	if timedOut {
		s.drainTimedOut(waiting)
		return outcome{}
	}
	return waiting
}

// until says whether a deadline is over. If it isn't, what waits is looked at again then, and from time to time for what is no
// event.
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

func (s *scope) clock() machines.Clock {
	clock := machines.ClockOf(s.machine, s.maintenance)
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
