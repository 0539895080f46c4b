// Package draintimeout decides about the Pods that are left when a drain runs out of time. They would go down with their Node, so
// each is asked to leave before, whether its step has come or not; and where the drain is to delete them (onTimeout: Delete), it
// does so in time for their grace periods.
package draintimeout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Margin is what a Pod gets beyond its grace period: its kubelet takes a moment to notice, to unmount, and to say so.
const Margin = 10 * time.Second

// Drain is the time that a drain has.
type Drain struct {
	Start, Ends time.Time
	// Deletes: Pods that are left are deleted.
	Deletes bool
}

// DrainOf returns the time limits of the drain of a NodeMaintenance, nil if the drain has no timeout or has not started.
func DrainOf(m *v1alpha1.NodeMaintenance) *Drain {
	ends := evacuation.DrainEnds(m)
	if m.Spec.Stage != v1alpha1.StageDrain || ends == nil {
		return nil
	}
	return &Drain{Start: *m.StageStart(v1alpha1.StageDrain), Ends: *ends, Deletes: m.Spec.Evacuation.OnTimeout == v1alpha1.OnTimeoutDelete}
}

// FinalAttemptAt is when a Pod is asked to leave whose step hasn't come: when what is left of the time belongs to its eviction. The first
// half of the time belongs to the order of the Pods.
func (d Drain) FinalAttemptAt(gracePeriod time.Duration) time.Time {
	return d.before(gracePeriod + evacuation.EvictionMargin)
}

// DeleteAt is when a Pod that is left is deleted: so early that its grace period ends before the drain does. The first half of
// the time belongs to evacuators and evictions, whatever the Pod asks for.
func (d Drain) DeleteAt(gracePeriod time.Duration) time.Time {
	return d.before(gracePeriod + Margin)
}

// before is so long before the end, and not in the first half.
func (d Drain) before(end time.Duration) time.Time {
	at, half := d.Ends.Add(-end), d.Start.Add(d.Ends.Sub(d.Start)/2)
	if at.Before(half) {
		return half
	}
	return at
}

// DeletedAtTimeout says whether a Pod counts among those that are deleted: it holds the drain up, and its deletion gets rid of it. Pods of
// DaemonSets would come back, and static ones don't notice. One that can't be decided upon may be protected by the very rule
// that can't be read. verdicts are those of the other maintenances that drain the Node: where one of them waits for the Pod to
// complete, it may have the time.
func DeletedAtTimeout(podType v1alpha1.PodType, own rules.Verdict, others []rules.Verdict) bool {
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

// GetsFinalAttempt says whether a Pod is asked to leave although its step hasn't come: it must go, and may go.
func GetsFinalAttempt(podType v1alpha1.PodType, own rules.Verdict, others []rules.Verdict) bool {
	return own.Behavior == v1alpha1.DrainBehaviorDrain && DeletedAtTimeout(podType, own, others)
}

// Attempted says whether a Pod has had its chance: it goes, or its Evacuation says what its eviction waits for.
func Attempted(terminating bool, e *v1alpha1.Evacuation) bool {
	return terminating || e != nil && meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting) != nil
}
