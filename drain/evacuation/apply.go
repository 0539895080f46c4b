package evacuation

import (
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Limits of the API, see v1alpha1.EvacuationStatus.
const (
	maxConditions    = 32
	maxMessageLength = 32768
)

// Apply makes the changes of the action to the Evacuation; the caller patches the difference. Apply is idempotent. An action that
// ends the Evacuation takes three writes, in this order:
//
//  1. the status: a DELETE is refused while the cancellation policy is Forbid;
//  2. DELETE, if Delete is true: after it the API server accepts no further instigators;
//  3. the finalizers.
func (a Action) Apply(e *v1alpha1.Evacuation, now time.Time) {
	switch a.Kind {
	case ResolveEvacuators:
		if len(e.Spec.Evacuators) == 0 {
			e.Spec.Evacuators = cloneEvacuators(a.Evacuators)
		}
	case Activate:
		a.activate(e, now)
	case AwaitEvacuator:
		// The Pod is not evicted, or no longer.
		meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationEvicting)
		if last := e.Status.EvacuationProgressTimestamp; last != nil && inFuture(last.Time, now) {
			e.Status.EvacuationProgressTimestamp = timestamp(now)
		}
	case Evict:
		a.evict(e, now)
	case AwaitTermination:
		a.awaitTermination(e, now)
	case AwaitBackoff:
		setCondition(e, v1alpha1.EvacuationEvicting, metav1.ConditionFalse, a, now)
		e.Status.Message = a.Message
	case Fail:
		if setCondition(e, v1alpha1.EvacuationFailed, metav1.ConditionTrue, a, now) {
			e.Status.Message = a.Message
		}
		a.end(e)
	case Finish:
		a.end(e)
	case AwaitPod, AwaitResume, AwaitCollection, Cancel, Done: // no changes; Cancel deletes the Evacuation unchanged
	}
}

// activate makes another evacuator active. It keeps the cancellation policy: what the previous evacuator has started may still
// be irrevocable.
func (a Action) activate(e *v1alpha1.Evacuation, now time.Time) {
	if e.IsAssignedTo(a.Class) {
		return
	}
	class := a.Class
	e.Status.ActiveEvacuatorClass = &class
	e.Status.ActiveEvacuatorCompleted = false
	e.Status.EvacuationProgressTimestamp = timestamp(now)
	e.Status.ExpectedEvacuationFinishTime = nil
	e.Status.Message = a.Message
	meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationEvicting)
	removeReports(e)
}

// removeReports removes the conditions of an evacuator that does not act any more: it may have exceeded its deadline. Why no replica was
// added stays.
func removeReports(e *v1alpha1.Evacuation) {
	meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationOrdered)
	if meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.EvacuationSurged) {
		meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationSurged)
	}
}

// evict adds the condition Evicting. It does not overwrite an existing one, in which Waiting and Refused record what the eviction
// waits for. It keeps the class, completion and progress of the active evacuator, so that Next recognizes new progress.
func (a Action) evict(e *v1alpha1.Evacuation, now time.Time) {
	if a.Reason == v1alpha1.ReasonNoEvacuator && e.Status.ActiveEvacuatorClass == nil {
		e.Status.ActiveEvacuatorCompleted = true
	}
	if meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.EvacuationEvicting) {
		return
	}
	setCondition(e, v1alpha1.EvacuationEvicting, metav1.ConditionTrue, a, now)
	removeReports(e)
	e.Status.Message = a.Message
}

// awaitTermination reports in the status that the Pod was observed and terminates, that it has been terminating for long, or why it is not
// evicted. It changes nothing if the Evacuation already says so.
func (a Action) awaitTermination(e *v1alpha1.Evacuation, now time.Time) {
	switch a.Reason {
	case ReasonPodTerminating:
		if !PodWasObserved(e) {
			e.Status.Message = a.Message
		}
		return
	case ReasonPodStillTerminating:
		if e.Status.Message == "" {
			e.Status.Message = a.Message
		}
		return
	}
	if evicting := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting); evicting != nil && evicting.Status == metav1.ConditionFalse &&
		evicting.Reason == a.Reason {
		return
	}
	setCondition(e, v1alpha1.EvacuationEvicting, metav1.ConditionFalse, a, now)
	e.Status.Message = a.Message
}

func (a Action) end(e *v1alpha1.Evacuation) {
	if forbidden(e) {
		e.Status.EvacuationCancellationPolicy = v1alpha1.CancellationAllow
	}
	e.Finalizers = slices.DeleteFunc(slices.Clone(e.Finalizers), isInstigator) // those of other actors stay
}

// Waiting records what the eviction waits for, in the condition Evicting and in the status message. It changes nothing if the Pod is
// not being evicted.
func Waiting(e *v1alpha1.Evacuation, reason, why string) {
	evicting := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting)
	if evicting == nil || evicting.Status != metav1.ConditionTrue {
		return
	}
	why = text.Cut(why, maxMessageLength)
	evicting.Reason, evicting.Message, e.Status.Message = reason, why, why
}

// Refused counts a refused eviction, and records its time, and the reason like Waiting.
func Refused(e *v1alpha1.Evacuation, reason, why string, now time.Time) {
	if e.Status.FailedEvictionCounter < math.MaxInt32 {
		e.Status.FailedEvictionCounter++
	}
	e.Status.FailedEvictionTime = timestamp(now)
	Waiting(e, reason, why)
}

// refusals are the reasons of an eviction that is attempted later without an event: it was refused, or a budget was deleted a moment ago.
// Not among them are the reasons that the evictor also finds without a request.
var refusals = ofAdmission.Union(sets.New(
	v1alpha1.ReasonNamespaceTerminating, v1alpha1.ReasonDisruptionBudgetRefused, v1alpha1.ReasonDisruptionBudgetUpdating, v1alpha1.ReasonNoResponse,
	v1alpha1.ReasonEvictionRefused, string(budgets.BudgetRemoved),
))

// IsAttempted reports whether the eviction of the Pod of an Evacuation was attempted at a time or later. One that was refused counts if it
// was refused at that time or later. Any other reason may be that of an earlier process, or from before a pause, and the
// PodDisruptionBudget of the Pod may allow a disruption now. It counts if the evictor has found the Pod waiting: from then on, the evictor
// evaluates the budget at each of its events.
func IsAttempted(e *v1alpha1.Evacuation, since time.Time, foundWaiting bool) bool {
	evicting := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting)
	if evicting == nil {
		return false
	}
	if !refusals.Has(evicting.Reason) {
		return foundWaiting
	}
	refused := e.Status.FailedEvictionTime
	return refused != nil && !refused.Time.Before(since.Truncate(time.Second)) // the API stores seconds
}

// failures are the reasons of an eviction about which the API server did not decide, because it failed.
var failures = sets.New(v1alpha1.ReasonNoResponse, v1alpha1.ReasonAPIServerBusy, v1alpha1.ReasonEvictionRefused)

// RefusedAt returns when the eviction of the Pod of an Evacuation was last refused. It returns nil if it was not, or if the API server
// failed instead of deciding: the next attempt may succeed.
func RefusedAt(e *v1alpha1.Evacuation) *time.Time {
	if e == nil || e.Status.FailedEvictionTime == nil {
		return nil
	}
	if evicting := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting); evicting != nil && failures.Has(evicting.Reason) {
		return nil
	}
	return &e.Status.FailedEvictionTime.Time
}

// setCondition sets a condition, and reports whether that changed anything. Evacuators write conditions too. If they have filled
// the list, setCondition removes the last of theirs, since the API server refuses longer lists.
func setCondition(e *v1alpha1.Evacuation, conditionType string, status metav1.ConditionStatus, a Action, now time.Time) bool {
	conditions := &e.Status.Conditions
	if meta.FindStatusCondition(*conditions, conditionType) == nil && len(*conditions) >= maxConditions {
		kept := slices.Clone(*conditions)
		for i := len(kept) - 1; i >= 0 && len(kept) >= maxConditions; i-- {
			if kept[i].Type != v1alpha1.EvacuationEvicting && kept[i].Type != v1alpha1.EvacuationFailed {
				kept = slices.Delete(kept, i, i+1)
			}
		}
		*conditions = kept
	}
	return meta.SetStatusCondition(conditions, metav1.Condition{
		Type:               conditionType,
		Status:             status,
		Reason:             a.Reason,
		Message:            a.Message,
		ObservedGeneration: e.Generation,
		LastTransitionTime: *timestamp(now),
	})
}

// timestamp returns the time as the API server stores it: in seconds.
func timestamp(now time.Time) *metav1.Time {
	t := metav1.NewTime(now.UTC().Truncate(time.Second))
	return &t
}
