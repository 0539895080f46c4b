// Package draintimeout decides what happens to the Pods that remain before the drain timeout. They would terminate with their Node, so each of
// them gets a final eviction attempt, regardless of its step. If onTimeout is Delete, the drain then deletes them early enough for their grace
// periods.
package draintimeout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Margin is the time that a Pod gets in addition to its grace period: the kubelet takes time to observe the deletion, to unmount volumes and to
// confirm.
const Margin = 10 * time.Second

// Drain contains the time limits of a drain.
type Drain struct {
	Start, Ends time.Time
	// Deletes means that the remaining Pods are deleted.
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

// FinalAttemptAt returns the time of the final eviction attempt of a Pod: early enough for an eviction and its grace period, but not in the
// first half of the drain, in which the drain order decides.
func (d Drain) FinalAttemptAt(gracePeriod time.Duration) time.Time {
	return d.before(gracePeriod + evacuation.EvictionMargin)
}

// DeleteAt returns the time at which a remaining Pod is deleted: early enough for its grace period, but not in the first half of the drain, in
// which evacuators and evictions act.
func (d Drain) DeleteAt(gracePeriod time.Duration) time.Time {
	return d.before(gracePeriod + Margin)
}

// before returns the time that long before the end of the drain, but not in its first half.
func (d Drain) before(end time.Duration) time.Time {
	at, half := d.Ends.Add(-end), d.Start.Add(d.Ends.Sub(d.Start)/2)
	if at.Before(half) {
		return half
	}
	return at
}

// DeletedAtTimeout reports whether a Pod is among those that are deleted before the timeout: it blocks the drain, and its deletion removes it.
// Pods of DaemonSets would be replaced, and a deletion does not stop static Pods. An undecided Pod is not deleted, because the invalid rule may
// protect it. others are the verdicts of the other maintenances that drain the Node: the Pod is not deleted if one of them is undecided or waits
// for the Pod to complete.
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

// GetsFinalAttempt reports whether a Pod gets a final eviction attempt, regardless of its step.
func GetsFinalAttempt(podType v1alpha1.PodType, own rules.Verdict, others []rules.Verdict) bool {
	return own.Behavior == v1alpha1.DrainBehaviorDrain && DeletedAtTimeout(podType, own, others)
}

// Attempted reports whether the final eviction attempt of a Pod was made: the Pod is terminating, or its Evacuation reports what the eviction
// waits for.
func Attempted(terminating bool, e *v1alpha1.Evacuation) bool {
	return terminating || e != nil && meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting) != nil
}
