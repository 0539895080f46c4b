// Package overtime decides about the Pods that are left when a drain runs out of time, where it is to delete them
// (onTimeout: Delete). They would go down with their Node; deleted in time, each has its grace period first.
package overtime

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Margin is what a Pod gets beyond its grace period: its kubelet takes a moment to notice, to unmount, and to say so.
const Margin = 10 * time.Second

// Drain is the time that a drain has.
type Drain struct {
	Start, Ends time.Time
}

// DrainOf returns the time of a NodeMaintenance that started to drain at start. Nil: it leaves what is left, or has no limit.
func DrainOf(m *v1alpha1.NodeMaintenance, start time.Time) *Drain {
	policy := m.Spec.Evacuation
	if m.Spec.Stage != v1alpha1.StageDrain || policy.OnTimeout != v1alpha1.OnTimeoutDelete || policy.DrainTimeoutSeconds == nil || *policy.DrainTimeoutSeconds <= 0 {
		return nil
	}
	return &Drain{Start: start, Ends: start.Add(time.Duration(*policy.DrainTimeoutSeconds) * time.Second)}
}

// DeleteAt is when a Pod that is left is deleted: so early that its grace period ends before the drain does. The first half of
// the time belongs to evacuators and evictions, whatever the Pod asks for.
func (d Drain) DeleteAt(gracePeriod time.Duration) time.Time {
	at, half := d.Ends.Add(-gracePeriod-Margin), d.Start.Add(d.Ends.Sub(d.Start)/2)
	if at.Before(half) {
		return half
	}
	return at
}

// Left says whether a Pod counts among those that are deleted: it holds the drain up, and its deletion gets rid of it. Pods of
// DaemonSets would come back, and static ones don't notice. One that can't be decided upon may be protected by the very rule
// that can't be read. verdicts are those of the other maintenances that drain the Node: where one of them waits for the Pod to
// complete, it may have the time.
func Left(podType v1alpha1.PodType, own rules.Verdict, others []rules.Verdict) bool {
	if podType != v1alpha1.PodTypeDefault || own.Undecided != "" || own.Behavior == v1alpha1.DrainBehaviorSkip {
		return false
	}
	for _, other := range others {
		if other.Undecided != "" || other.Behavior == v1alpha1.DrainBehaviorWaitCompleted {
			return false
		}
	}
	return true
}
