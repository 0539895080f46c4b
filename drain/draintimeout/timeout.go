// Package draintimeout decides what happens to the Pods that remain before the drain timeout. They would terminate with their Node, so each
// of them gets a final eviction attempt, regardless of its step. If onTimeout is Delete, the drain then deletes them early enough for their
// grace periods.
//
// The time for that may have passed when the manager observes the timeout: it was set late, or the Machine was paused, or no manager ran.
// Then attempts and deletions are made at once, and the Machine waits for them after the timeout. Status records in the API how long.
package draintimeout

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Margin is how long a Machine waits in addition to the grace period of a Pod that terminates after its drain timeout: the kubelet takes
// time to observe the deletion, to unmount volumes and to confirm.
const Margin = 10 * time.Second

// deletionMargin is the time that a Pod which is deleted before the drain timeout gets in addition to its grace period.
const deletionMargin = 5 * time.Second

// evictionTime is the time after the beginning of the drain, and after the final eviction attempt of a Pod, in which only Pods whose
// eviction was refused are deleted. If half of the remaining drain timeout is shorter, that applies instead.
const evictionTime = 10 * time.Second

// MaxGracePeriod is how long a Machine waits for the Pods that terminate after its drain timeout, whatever their grace periods.
const MaxGracePeriod = 10 * time.Minute

// Drain contains the time limits of a drain. No final eviction attempt and no deletion is due before they are observed.
type Drain evacuation.Timeout

// DrainOf returns the time limits of the drain of a Node by a NodeMaintenance, nil if the drain has no timeout or has not started. joined
// is the start of the drain of the Node if the Node joined later, see Joined. Limits that the status does not have yet are observed now.
func DrainOf(m *v1alpha1.NodeMaintenance, joined *metav1.Time, now time.Time) *Drain {
	status := Observe(m, now)
	if status == nil {
		return nil
	}
	of := evacuation.TimeoutOf(m, status.Deadline.Time, status.ObservedTime.Time)
	if joined != nil {
		of = of.JoinedAt(joined.Time)
	}
	return ptr.To(Drain(of))
}

// Joined returns when the drain of a Node began, nil if it began with stage Drain, see evacuation.Joined. m is the NodeMaintenance as
// stored before this reconciliation, and listed the entry of the Node in its status, nil if it has none. A Node that the status cannot list
// joins in each reconciliation, so it never times out.
func Joined(m *v1alpha1.NodeMaintenance, listed *v1alpha1.NodeMaintenanceNodeStatus, node *corev1.Node, now time.Time) *metav1.Time {
	if at, recorded := evacuation.Joined(m, listed, node); recorded {
		return at
	}
	now = now.Truncate(time.Second)
	if node.CreationTimestamp.After(now) { // clocks differ
		now = node.CreationTimestamp.Time
	}
	return ptr.To(metav1.NewTime(now))
}

// Observe returns the status of the drain timeout of a NodeMaintenance, nil if its drain has no timeout or has not started. It keeps the
// recorded times until the deadline changes, unless the clock of a manager that has observed it was ahead.
func Observe(m *v1alpha1.NodeMaintenance, now time.Time) *v1alpha1.DrainTimeoutStatus {
	ends := evacuation.DrainEnds(m)
	if m.Spec.Stage != v1alpha1.StageDrain || ends == nil {
		return nil
	}
	observed := now.Add(time.Second - time.Nanosecond).Truncate(time.Second) // an attempt in the same second may have been made before
	if recorded := m.Status.DrainTimeout; recorded != nil && recorded.Deadline.Time.Equal(*ends) && !recorded.ObservedTime.After(observed) {
		return recorded.DeepCopy()
	}
	return &v1alpha1.DrainTimeoutStatus{Deadline: metav1.NewTime(*ends), ObservedTime: metav1.NewTime(observed)}
}

// Progress is the progress of the final eviction attempts of a drain, and of its deletions if onTimeout is Delete.
type Progress struct {
	// AllDue means that the attempts and deletions of all remaining Pods are due.
	AllDue bool
	// Missing is the number of attempts and deletions that are due and not observed yet.
	Missing int
	// TerminatingUntil is the end of the last grace period of the Pods that terminate, zero if it has passed.
	TerminatingUntil time.Time
}

// Done reports whether all attempts and deletions have been made, and the Pods that terminate have had their grace periods.
func (p Progress) Done() bool { return p.AllDue && p.Missing == 0 && p.TerminatingUntil.IsZero() }

// AddTerminating adds a Pod that terminates, with its deletionTimestamp, which includes its grace period. It returns the time until which
// the Pod is waited for, zero if that has passed.
func (p *Progress) AddTerminating(deletion, now time.Time) time.Time {
	until := deletion.Add(Margin)
	if !now.Before(until) {
		return time.Time{}
	}
	if until.After(p.TerminatingUntil) {
		p.TerminatingUntil = until
	}
	return until
}

// Record records the start and the latest end of the final eviction attempts in the status of the drain timeout. Both are unset while some
// attempts are not due. The start stays the same when Pods appear later. A Machine bounds its wait itself, see machinedrain.Clock.
func Record(status *v1alpha1.DrainTimeoutStatus, p Progress, now time.Time) {
	if !p.AllDue {
		status.FinalAttemptTime, status.FinalAttemptEndTime = nil, nil
		return
	}
	if status.FinalAttemptTime == nil {
		status.FinalAttemptTime = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
	}
	end := status.FinalAttemptTime.Add(evacuation.EvictionMargin)
	if p.TerminatingUntil.After(end) {
		end = p.TerminatingUntil
	}
	status.FinalAttemptEndTime = ptr.To(metav1.NewTime(end))
}

// FinalAttemptAt returns the time of the final eviction attempt of a Pod: early enough for an eviction and its grace period, but not in the
// first half of the drain, in which the drain order decides, and not before the limits are observed. If the drain deletes the remaining
// Pods, it is evictionTime before the deletion of a Pod whose eviction was not refused: so also a Pod of a later step, or one that has an
// evacuator, is evicted as its budget allows before it is deleted.
func (d Drain) FinalAttemptAt(gracePeriod time.Duration) time.Time {
	earliest := d.half()
	if d.Deletes {
		earliest = d.deletesFrom(gracePeriod)
		if before := latest(d.Ends.Add(-gracePeriod-deletionMargin), earliest).Add(-d.evictionTime()); before.Before(earliest) {
			earliest = before
		}
	}
	return latest(d.Ends.Add(-gracePeriod-evacuation.EvictionMargin), earliest, d.Observed)
}

// DeleteAt returns the time at which a remaining Pod is deleted: early enough for its grace period, but not before its eviction was refused
// or evictionTime has passed, and not before the limits are observed. e is its Evacuation, nil if it has none.
func (d Drain) DeleteAt(gracePeriod time.Duration, e *v1alpha1.Evacuation) time.Time {
	earliest := d.deletesFrom(gracePeriod)
	if refused := evacuation.RefusedAt(e); refused != nil && !d.isTooShort(gracePeriod) && !refused.Before(d.Began) && refused.Before(earliest) {
		earliest = *refused
	}
	return latest(d.Ends.Add(-gracePeriod-deletionMargin), earliest, d.Observed)
}

// deletesFrom returns the time from which the drain deletes Pods with a grace period whose eviction was not refused.
func (d Drain) deletesFrom(gracePeriod time.Duration) time.Time {
	from := d.Began.Add(d.evictionTime())
	if d.isTooShort(gracePeriod) {
		return latest(from, d.half())
	}
	return from
}

func (d Drain) evictionTime() time.Duration { return max(0, min(evictionTime, d.Ends.Sub(d.Began)/2)) }

// isTooShort reports whether the timeout is shorter than a grace period. No deletion could give a Pod this grace period, so the Pod is not
// deleted in the first half of the drain, in which it may be evicted.
func (d Drain) isTooShort(gracePeriod time.Duration) bool { return gracePeriod > d.Ends.Sub(d.Start) }

func (d Drain) half() time.Time { return d.Start.Add(d.Ends.Sub(d.Start) / 2) }

// Shortage says that the drain deletes a Pod, but too late for its grace period, and what to do about it. It is empty if the Pod is given
// its whole grace period, or if the drain deletes no Pods.
func (d Drain) Shortage(gracePeriod time.Duration) string {
	if at := latest(d.Ends.Add(-gracePeriod-deletionMargin), d.deletesFrom(gracePeriod)); !d.Deletes || !at.Add(gracePeriod).After(d.Ends) {
		return ""
	}
	return fmt.Sprintf("Its grace period of %s does not fit into the drain timeout of %s, before which onTimeout: Delete deletes it: set a timeout of at least %s",
		gracePeriod, d.Ends.Sub(d.Start), gracePeriod+deletionMargin+evictionTime)
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// DeletedAtTimeout reports whether a Pod is among those that are deleted before the timeout: it blocks the drain, and its deletion removes
// it. Pods of DaemonSets would be replaced, and a deletion does not stop static Pods. An undecided Pod is not deleted, because the invalid
// rule may protect it. others are the verdicts of the other maintenances that drain the Node: the Pod is not deleted if one of them is
// undecided or waits for the Pod to complete.
func DeletedAtTimeout(podType v1alpha1.PodType, own rules.Verdict, others []rules.Verdict) bool {
	if podType != v1alpha1.PodTypeDefault || own.Undecided != "" || own.Behavior == v1alpha1.DrainBehaviorSkip {
		return false
	}
	return !slices.ContainsFunc(others, rules.Verdict.Vetoes)
}

// GetsFinalAttempt reports whether a Pod gets a final eviction attempt, regardless of its step.
func GetsFinalAttempt(podType v1alpha1.PodType, own rules.Verdict, others []rules.Verdict) bool {
	return own.Behavior == v1alpha1.DrainBehaviorDrain && DeletedAtTimeout(podType, own, others)
}

// Attempted reports whether the final eviction attempt of a Pod, which is due, was made: the Pod is terminating, or its Evacuation says
// that its eviction was attempted since then. For foundWaiting, see evacuation.IsAttempted.
func Attempted(terminating bool, e *v1alpha1.Evacuation, due time.Time, foundWaiting bool) bool {
	return terminating || e != nil && evacuation.IsAttempted(e, due, foundWaiting)
}

// NextFinalAttempt returns the time of the first final eviction attempt of a Pod after a failed attempt, zero if there is none. From then
// on, the eviction does not wait for anything but its PodDisruptionBudget: the backoff of a refused eviction ends, for example. Each drain
// of the Node with a timeout has one.
func NextFinalAttempt(terms evacuation.Terms, gracePeriod time.Duration, failed time.Time) time.Time {
	var next time.Time
	for _, timeout := range terms.Timeouts {
		at := Drain(timeout).FinalAttemptAt(gracePeriod)
		if failed.Before(at) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}
