package surge

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Report is what the Evacuation of a Pod is told.
type Report struct {
	Pod types.UID
	// Refusal says that no room is made, and ends our turn. Empty: there is progress.
	Refusal Refusal
	Message string
}

// Apply notes the report on the Evacuation.
func (r Report) Apply(e *v1alpha1.Evacuation, now time.Time) {
	now = now.UTC().Truncate(time.Second) // as the API server will give it back
	e.Status.Message = r.Message
	if r.Refusal == "" {
		progress := metav1.NewTime(now)
		e.Status.EvacuationProgressTimestamp = &progress
		return
	}
	e.Status.ActiveEvacuatorCompleted = true
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

// report tells the Pods of this round, once, and those that wait for a later one.
func (s *surging) report(pods []Leaving, message string) []Report {
	var reports []Report
	for _, pod := range pods {
		if pod.Message != message {
			reports = append(reports, Report{Pod: pod.UID, Message: message})
		}
	}
	return append(reports, s.renew()...)
}

// renewShare of its progress deadline is how long a Pod that waits for a later round isn't told of the progress of this one. It
// must be told before its turn ends in silence, and a write for each Pod and round would be many.
const renewShare = 0.25

// renew tells the Pods that wait for a later round that there is progress.
func (s *surging) renew() []Report {
	var reports []Report
	message := fmt.Sprintf("Waiting for its turn: Deployment %s makes room for %d at a time.", s.name(), s.b.Surged-s.b.Replicas)
	for _, pod := range s.Leaving {
		after := time.Duration(float64(pod.Deadline.Sub(pod.Progress)) * renewShare)
		if !s.includes(pod.UID) && !s.Now.Before(pod.Progress.Add(after)) {
			reports = append(reports, Report{Pod: pod.UID, Message: message})
		}
	}
	return reports
}

func (s *surging) makingRoom() string {
	by := ""
	if s.b.Autoscaler != nil {
		by = " by the minReplicas of HorizontalPodAutoscaler " + s.b.Autoscaler.Name
	}
	return fmt.Sprintf("Making room before Pods leave: Deployment %s is scaled from %d to %s%s.", s.name(), s.b.Replicas, count(s.b.Surged), by)
}
