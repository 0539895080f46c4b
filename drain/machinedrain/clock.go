package machinedrain

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Clock has the start times of the parts of the drain of a Machine's Node. Cluster API's own clocks do not run while a hook waits.
type Clock struct {
	// Drain is the start of stage Drain, nil if it has not started or is unknown.
	Drain *time.Time
	// Volumes is the start of the wait for volumes, nil before.
	Volumes *time.Time
	// pending means that the NodeMaintenance exists and has not started to drain.
	pending bool
}

// ClockOf reads the clock from the Machine, where it is recorded in case the workload cluster becomes unreachable, and from the
// NodeMaintenance, which is nil if it is unknown. The earlier start counts: a recreated NodeMaintenance does not reset the clock.
func ClockOf(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) Clock {
	clock := Clock{Drain: recorded(m, v1alpha1.DrainStartedAnnotation), Volumes: recorded(m, v1alpha1.VolumeWaitStartedAnnotation)}
	if maintenance == nil {
		return clock
	}
	if start := maintenance.StageStart(v1alpha1.StageDrain); start != nil && (clock.Drain == nil || start.Before(*clock.Drain)) {
		clock.Drain = start
	}
	clock.pending = clock.Drain == nil
	return clock
}

// WithTurn starts the clock of a drain that has not started although maxParallelDrains permits it: the drain timeout also applies to what
// keeps the NodeMaintenance from draining the Node. It does not start before the request for the drain, even if the clock of this manager is behind.
func (c Clock) WithTurn(m *clusterv1.Machine, now time.Time) Clock {
	if requested := RequestedAt(m); requested != nil && now.Before(*requested) {
		now = *requested
	}
	if c.pending {
		c.Drain, c.pending = &now, false
	}
	return c
}

func recorded(m *clusterv1.Machine, annotation string) *time.Time {
	t, err := time.Parse(time.RFC3339, m.Annotations[annotation])
	if err != nil {
		return nil
	}
	return &t
}

// VolumeWaitStart returns the start of the wait for volumes: the recorded start, or else the end of the drain. It is not before the start of the
// drain, even if the clock of a manager was behind.
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
	if c.Drain != nil && start.Before(*c.Drain) {
		start = *c.Drain
	}
	return start
}

// DrainDeadline returns when the drain times out, nil if it has no timeout. The clock starts with stage Drain of the NodeMaintenance: a wait
// because of maxParallelDrains does not count. If no NodeMaintenance was ever created, because the workload cluster is unreachable, the clock
// starts with the request, see RequestedAt.
func (c Clock) DrainDeadline(m *clusterv1.Machine) *time.Time {
	start := c.Drain
	if start == nil && !c.pending {
		start = RequestedAt(m)
	}
	return deadline(start, DrainTimeout(m))
}

// finalAttemptPeriod is how much longer a Machine waits at the drain timeout if some Pods have not had their final eviction attempt, for
// example because the timeout was set late.
const finalAttemptPeriod = 10 * time.Second

// ReleaseAt returns when a Machine whose drain has not completed is released, nil if the drain has no timeout. Every Pod that must be evicted
// has one final eviction attempt before.
func (c Clock) ReleaseAt(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) *time.Time {
	deadline := c.DrainDeadline(m)
	if deadline == nil || maintenance == nil || allAttempted(maintenance) {
		return deadline
	}
	return ptr.To(deadline.Add(finalAttemptPeriod))
}

// allAttempted reports whether every Pod that must be evicted has had its final eviction attempt under the current spec.
func allAttempted(m *v1alpha1.NodeMaintenance) bool {
	return isTrue(m, v1alpha1.NodeMaintenanceFinalEvictionAttempt)
}

// VolumeDeadline returns when the wait for volumes times out, nil if it has no timeout or has not started.
func (c Clock) VolumeDeadline(m *clusterv1.Machine) *time.Time {
	return deadline(c.Volumes, seconds(m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds))
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

// MissingAnnotations returns the annotations that record the clock on a Machine and that the Machine does not have yet. A part without a timeout is
// not recorded.
func (c Clock) MissingAnnotations(m *clusterv1.Machine) map[string]string {
	missing := map[string]string{}
	add := func(annotation string, start, deadline *time.Time) {
		if start == nil || deadline == nil {
			return
		}
		if present := recorded(m, annotation); present == nil || start.Before(*present) {
			missing[annotation] = start.UTC().Truncate(time.Second).Format(time.RFC3339)
		}
	}
	add(v1alpha1.DrainStartedAnnotation, c.Drain, c.DrainDeadline(m))
	add(v1alpha1.VolumeWaitStartedAnnotation, c.Volumes, c.VolumeDeadline(m))
	return missing
}

// EndVolumeWait removes the start of the wait for volumes from a Machine. The drain timeout applies again: to the Pods of DaemonSets.
func EndVolumeWait(m *clusterv1.Machine) (changed bool) {
	return removeAnnotations(m, v1alpha1.VolumeWaitStartedAnnotation)
}
