package surge

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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
	Message string
	// Stalled means that there is no progress: the report does not extend the progress deadline.
	Stalled bool
}

// Apply writes the report to the status of the Evacuation.
func (r Report) Apply(e *v1alpha1.Evacuation, now time.Time) {
	now = now.UTC().Truncate(time.Second) // the precision that the API server stores
	e.Status.Message = r.Message
	if r.Stalled {
		return
	}
	if r.Refusal == "" {
		progress := metav1.NewTime(now)
		e.Status.EvacuationProgressTimestamp = &progress
		return
	}
	e.Status.ActiveEvacuatorCompleted = true
	if meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged) == nil && len(e.Status.Conditions) >= maxConditions {
		return // the API server would reject one more condition
	}
	meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{
		Type: v1alpha1.EvacuationSurged, Status: metav1.ConditionFalse, Reason: string(r.Refusal), Message: r.Message,
		ObservedGeneration: e.Generation, LastTransitionTime: metav1.NewTime(now),
	})
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

// report returns the reports of the Pods of this round that do not have the message yet, and of the Pods that wait for a later round.
func (s *surging) report(pods []Leaving, message string) []Report {
	var reports []Report
	for _, pod := range pods {
		if pod.Message != message {
			reports = append(reports, Report{Pod: pod.UID, Message: message})
		}
	}
	return append(reports, s.renew()...)
}

// renewShare is the share of its progress deadline after which a Pod that waits for a later round gets a report of progress. Without
// any report it would miss the deadline; a report for each Pod and round would take many writes.
const renewShare = 0.25

// renew returns reports of progress for the Pods that wait for a later round.
func (s *surging) renew() []Report {
	var reports []Report
	message := s.laterRoundMessage()
	for _, pod := range s.Leaving {
		after := time.Duration(float64(pod.Deadline.Sub(pod.Progress)) * renewShare)
		if !s.b.includes(pod.UID) && !s.Now.Before(pod.Progress.Add(after)) {
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
	return fmt.Sprintf("%sfrom %d to %s%s.", scaling(s.Deployment), s.b.Replicas, text.Count(s.b.Surged, "replica"), by)
}

// scaling is the beginning of scalingMessage, which is the same in each round.
func scaling(d *appsv1.Deployment) string {
	return "Adding replicas before Pods are removed: Deployment " + nameOf(d) + " is scaled "
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
