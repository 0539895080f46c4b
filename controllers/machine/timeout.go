package machine

import (
	"context"
	"maps"
	"time"

	"github.com/pkg/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// pollInterval is how often a waiting Machine is reconciled without an event, because some changes trigger none.
const pollInterval = 15 * time.Second

func (s *scope) clock() machinedrain.Clock {
	clock := machinedrain.ClockOf(s.machine, s.maintenance)
	if s.mayDrain {
		clock = clock.WithTurn(s.machine, s.now)
	}
	if clock.Volumes == nil {
		clock.Volumes = s.volumeWaitStart
	}
	return clock
}

// recordClock records the start of the drain, and of the wait for volumes, on the Machine if there is a timeout. The deadline must be known
// even if the workload cluster is unreachable.
func (r *Reconciler) recordClock(ctx context.Context, s *scope) error {
	missing := s.clock().MissingAnnotations(s.machine)
	if len(missing) == 0 {
		return nil
	}
	changed := s.machine.DeepCopy()
	maps.Copy(changed.Annotations, missing)
	if err := r.Client.Patch(ctx, changed, client.MergeFrom(s.machine)); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "recording the start of the drain on Machine %s", klog.KObj(s.machine))
	}
	s.machine = changed
	return nil
}

// untilDeadline limits a wait during which the drain cannot be observed. If a deadline is exceeded, the drain timeout, or the volume detach
// timeout once the drain is over, it returns the outcome that releases the Machine regardless of what it waits for.
func (s *scope) untilDeadline(waiting outcome) outcome {
	clock := s.clock()
	deadline := clock.DrainDeadline(s.machine)
	if clock.Volumes != nil {
		deadline = clock.VolumeDeadline(s.machine)
	}
	switch {
	case !s.exceeds(deadline):
		return s.requeueBy(deadline, waiting)
	case clock.Volumes != nil:
		s.drainOver = true
		s.volumesTimedOut(waiting.message)
	default:
		s.drainTimedOut(waiting.message)
	}
	return s.result()
}

// untilDrainDeadline waits until the drain times out and every Pod has had its final eviction attempt. After that, the next step runs.
func (s *scope) untilDrainDeadline(waiting outcome) outcome {
	deadline := s.clock().ReleaseAt(s.machine, s.maintenance)
	if s.exceeds(deadline) {
		s.drainTimedOut(waiting.message)
		return outcome{}
	}
	return s.requeueBy(deadline, waiting)
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
	s.drainTimeoutMessage = "The drain exceeded nodeDrainTimeoutSeconds: " + waitedFor
	s.timedOut = append(s.timedOut, s.drainTimeoutMessage)
}

func (s *scope) volumesTimedOut(waitedFor string) {
	s.volumesOver = true
	s.volumesTimeoutMessage = "The volumes did not detach within nodeVolumeDetachTimeoutSeconds: " + waitedFor
	s.timedOut = append(s.timedOut, s.volumesTimeoutMessage)
}
