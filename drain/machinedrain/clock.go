package machinedrain

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Clock says when the parts of a Machine's deletion have started. Cluster API's own clocks don't run while a hook waits.
type Clock struct {
	// Drain is the start of the Drain stage. Nil: it hasn't started, or isn't known.
	Drain *time.Time
	// Volumes is the start of the wait for volumes. Nil: there is none yet.
	Volumes *time.Time
	// pending: the NodeMaintenance is there, and has not started to drain: it waits for its turn, or has just got it.
	pending bool
}

// ClockOf reads the clock from the Machine, where it is noted for the time when the workload cluster can't be reached, and
// from the NodeMaintenance, nil where it isn't known. The earlier start of the two counts: a NodeMaintenance that somebody
// has deleted, and that is made again, doesn't turn the clock back.
func ClockOf(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) Clock {
	clock := Clock{Drain: noted(m, v1alpha1.DrainStartedAnnotation), Volumes: noted(m, v1alpha1.VolumeWaitStartedAnnotation)}
	if maintenance == nil {
		return clock
	}
	if start := maintenance.StageStart(v1alpha1.StageDrain); start != nil && (clock.Drain == nil || start.Before(*clock.Drain)) {
		clock.Drain = start
	}
	clock.pending = clock.Drain == nil
	return clock
}

// WithTurn starts the clock of a drain that has not begun although its turn has come: whatever keeps the NodeMaintenance from draining
// the Node, the drain timeout counts.
func (c Clock) WithTurn(now time.Time) Clock {
	if c.pending {
		c.Drain, c.pending = &now, false
	}
	return c
}

func noted(m *clusterv1.Machine, annotation string) *time.Time {
	t, err := time.Parse(time.RFC3339, m.Annotations[annotation])
	if err != nil {
		return nil
	}
	return &t
}

// VolumeWaitStart is when a wait for volumes that isn't noted yet has started: with the end of the drain, however it ended.
func (c Clock) VolumeWaitStart(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance, now time.Time) time.Time {
	if c.Volumes != nil {
		return *c.Volumes
	}
	start := now
	if deadline := c.DrainDeadline(m); deadline != nil && deadline.Before(start) {
		start = *deadline
	}
	drained := meta.FindStatusCondition(maintenance.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
	if drained != nil && drained.Status == metav1.ConditionTrue && drained.LastTransitionTime.Time.Before(start) {
		start = drained.LastTransitionTime.Time
	}
	return start
}

// DrainDeadline is when the drain's time is up, nil if it has no limit. The clock starts with the Drain stage of the
// NodeMaintenance: waiting for a turn doesn't count. While there never was one, because the workload cluster can't be
// reached, it starts with the Machine's deletion.
func (c Clock) DrainDeadline(m *clusterv1.Machine) *time.Time {
	start := c.Drain
	if start == nil && !c.pending && !m.DeletionTimestamp.IsZero() {
		start = &m.DeletionTimestamp.Time
	}
	return deadline(start, m.Spec.Deletion.NodeDrainTimeoutSeconds)
}

// lastCall is how much longer than its time a drain has, where Pods are still to be asked to leave when that is up: as where the
// timeout is set late.
const lastCall = 10 * time.Second

// ReleaseAt is when a Machine is released whose drain isn't over, nil if its time has no limit. Each Pod that must go is asked to
// before.
func (c Clock) ReleaseAt(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) *time.Time {
	deadline := c.DrainDeadline(m)
	if deadline == nil || maintenance == nil || allAttempted(maintenance) {
		return deadline
	}
	return ptr.To(deadline.Add(lastCall))
}

// allAttempted says whether each Pod that must go has been asked to, as the NodeMaintenance is specified now.
func allAttempted(m *v1alpha1.NodeMaintenance) bool {
	called := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceFinalEvictionAttempt)
	return called != nil && called.Status == metav1.ConditionTrue && called.ObservedGeneration == m.Generation
}

// VolumeDeadline is when the time for volumes to detach is up, nil if it has no limit or the wait hasn't begun.
func (c Clock) VolumeDeadline(m *clusterv1.Machine) *time.Time {
	return deadline(c.Volumes, m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds)
}

// deadline: no timeout, and a timeout of 0, mean no limit.
func deadline(start *time.Time, timeoutSeconds *int32) *time.Time {
	if start == nil || timeoutSeconds == nil || *timeoutSeconds <= 0 {
		return nil
	}
	at := start.Add(time.Duration(*timeoutSeconds) * time.Second)
	return &at
}

// Notes are the annotations that keep the clock on a Machine, as far as they aren't there yet. A part without a limit needs
// none.
func (c Clock) Notes(m *clusterv1.Machine) map[string]string {
	notes := map[string]string{}
	note := func(annotation string, start, deadline *time.Time) {
		if start == nil || deadline == nil {
			return
		}
		if present := noted(m, annotation); present == nil || start.Before(*present) {
			notes[annotation] = start.UTC().Truncate(time.Second).Format(time.RFC3339)
		}
	}
	note(v1alpha1.DrainStartedAnnotation, c.Drain, c.DrainDeadline(m))
	note(v1alpha1.VolumeWaitStartedAnnotation, c.Volumes, c.VolumeDeadline(m))
	return notes
}
