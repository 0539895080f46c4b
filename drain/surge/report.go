package surge

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxConditions is the limit of the API.
const maxConditions = 32

// Report is the report of a surge in the status of a Pod's Evacuation.
type Report struct {
	Pod types.UID
	// Refusal is why the Pod is not surged. It completes the evacuator. Empty: there is progress.
	Refusal Refusal
	// Surged is why the condition Surged is True: EventSurged, EventCompleted or EventRestarted. Without it and a Refusal, the condition is
	// removed.
	Surged  string
	Message string
	// Stalled means that there is no progress: the report does not extend the progress deadline.
	Stalled bool
}

// Apply writes the report to the status of the Evacuation.
func (r Report) Apply(e *v1alpha1.Evacuation, now time.Time) {
	now = now.UTC().Truncate(time.Second) // the precision that the API server stores
	e.Status.Message = r.Message
	condition := metav1.Condition{
		Type: v1alpha1.EvacuationSurged, Status: metav1.ConditionTrue, Reason: r.Surged, Message: r.Message,
		ObservedGeneration: e.Generation, LastTransitionTime: metav1.NewTime(now),
	}
	switch {
	case r.Refusal != "":
		e.Status.ActiveEvacuatorCompleted = true
		condition.Status, condition.Reason = metav1.ConditionFalse, string(r.Refusal)
	case !r.Stalled:
		e.Status.EvacuationProgressTimestamp = new(metav1.NewTime(now))
	}
	switch {
	case condition.Reason == "":
		meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationSurged)
	case meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged) == nil && len(e.Status.Conditions) >= maxConditions:
		e.Status.ActiveEvacuatorCompleted = true // the API server would reject one more condition, and without a record, a surge could begin each time
	default:
		meta.SetStatusCondition(&e.Status.Conditions, condition)
	}
}

func refuse(pod Leaving, refusal Refusal, why string) Report {
	return Report{Pod: pod.UID, Refusal: refusal, Message: why + "."}
}

func refuseAll(pods []Leaving, refusal Refusal, why string) []Report {
	reports := make([]Report, 0, len(pods))
	for _, pod := range pods {
		reports = append(reports, refuse(pod, refusal, why))
	}
	return reports
}

func podsOf(reports []Report) []types.UID {
	pods := make([]types.UID, 0, len(reports))
	for _, report := range reports {
		pods = append(pods, report.Pod)
	}
	return pods
}

// IsRecorded reports whether the other writes may follow the reports, some of which the API server has refused. A Pod whose Evacuation
// cannot change delays neither the surge for other Pods of its round nor its end. But a surge of which no Evacuation has a record could
// begin again and again.
func (d Decision) IsRecorded(refused []Report) bool {
	return len(d.Recorded) == 0 || slices.ContainsFunc(d.Recorded, func(pod types.UID) bool { return !slices.Contains(podsOf(refused), pod) })
}

// Writes reports whether the decision writes anything besides its reports.
func (d Decision) Writes() bool {
	return d.Deployment != nil || d.Autoscaler != nil || len(d.Mark)+len(d.Unmark) > 0
}

// Wait is how a Pod waits for the evacuator.
type Wait struct {
	Suspended bool // its drain is suspended
	Ended     bool // the progress deadline is exceeded, or a later evacuator is to remove the Pod
}

// IsOutdated reports whether a decision must not be written any more, because a Pod that waited when it was made does not wait now.
// present are the Pods that wait now; the others are gone, or their drains were cancelled. A suspension always counts. A wait that has
// ended does not count for Pods that the decision refuses, which may be evicted, nor if the decision ends a surge by its reports: after a
// cancellation, the next decision may not know of the surge any more, since its record may have been lost.
func (d Decision) IsOutdated(o Observation, present map[types.UID]Wait) bool {
	endsSurge := len(d.Recorded) > 0 && len(d.Serves) == 0
	return slices.ContainsFunc(o.Leaving, func(pod Leaving) bool {
		if pod.Suspended {
			return false
		}
		wait, waits := present[pod.UID]
		hasEnded := !waits || wait.Ended
		return wait.Suspended || hasEnded && !endsSurge && !d.refuses(pod.UID)
	})
}

func (d Decision) refuses(pod types.UID) bool {
	return slices.ContainsFunc(d.Reports, func(report Report) bool { return report.Pod == pod && report.Refusal != "" })
}

// Refuse returns the reports after the API server has refused a write of the decision, as it has since a time: after refusedTime, the surge
// ends for the Pods that it serves. A write that ends a surge is repeated.
func (d Decision) Refuse(why error, since, now time.Time) []Report {
	if now.Before(since.Add(refusedTime)) {
		return nil
	}
	return refuseAll(d.Serves, WriteRefused, "The API server refuses the surge: "+oneLine(why.Error()))
}

// report returns the reports of the Pods of this round that do not have the message yet, and of the Pods that wait for a later round.
func (s *surging) report(pods []Leaving, surged, message string) []Report {
	var reports []Report
	for _, pod := range pods {
		if pod.Message != message || pod.Surged != surged {
			reports = append(reports, Report{Pod: pod.UID, Surged: surged, Message: message})
		}
	}
	return append(reports, s.renew()...)
}

// renew returns reports of progress for the Pods that wait for a later round.
func (s *surging) renew() []Report {
	var reports []Report
	message := s.laterRoundMessage()
	for _, pod := range s.Leaving {
		if !s.b.includes(pod.UID) && !s.Now.Before(pod.RenewAt) {
			reports = append(reports, Report{Pod: pod.UID, Message: message})
		}
	}
	return reports
}

func (s *surging) laterRoundMessage() string {
	return fmt.Sprintf("Waiting for other Pods of Deployment %s to be replaced: at most %d at a time.", s.name(), s.b.Surged-s.b.Replicas)
}

func (s *surging) scalingMessage() string {
	by := ""
	if s.b.Autoscaler != nil {
		by = " by minReplicas of HorizontalPodAutoscaler " + s.b.Autoscaler.Name
	}
	return fmt.Sprintf("Adding replicas before Pods are removed: Deployment %s is scaled from %d to %s%s.", s.name(), s.b.Replicas,
		text.Count(s.b.Surged, "replica"), by)
}

// SurgedIn returns Report.Surged of the last report in an Evacuation.
func SurgedIn(e *v1alpha1.Evacuation) string {
	c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged)
	if c == nil || c.Status != metav1.ConditionTrue {
		return ""
	}
	return c.Reason
}

// RefusedIn returns why the Pod of an Evacuation was not surged, as the evacuator has reported it, and false if it has not refused the
// surge.
func RefusedIn(e *v1alpha1.Evacuation) (Outlook, bool) {
	if e == nil {
		return Outlook{}, false
	}
	c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged)
	if c == nil || c.Status != metav1.ConditionFalse {
		return Outlook{}, false
	}
	return Outlook{Refusal: Refusal(c.Reason), Message: c.Message}, true
}
