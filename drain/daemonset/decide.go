package daemonset

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Refusal is the reason why a Pod is not deleted. It is not reported to the Evacuation: activeEvacuatorCompleted would activate
// the next evacuator, which must not evict the Pod either.
type Refusal string

const (
	// NotRefused means that the Pod may be deleted.
	NotRefused Refusal = ""
	// EvacuatorNotActive means that another evacuator is active, that no evacuator is, or that this one has completed.
	EvacuatorNotActive Refusal = "the evacuator " + v1alpha1.EvacuatorClassDaemonSet + " is not active"
	// NotRequested means that no NodeMaintenance requests the Evacuation. The evacuator deletes no Pod for other instigators.
	NotRequested Refusal = "no NodeMaintenance requests the Evacuation"
	// NotOfDaemonSet means that the Pod is not known to be controlled by an existing DaemonSet.
	NotOfDaemonSet Refusal = "no existing DaemonSet controls the Pod"
	// NotRunning means that the Pod is terminating or has finished.
	NotRunning Refusal = "the Pod is terminating or has finished"
	// IsRecreated means that the Pod tolerates the taint, so its DaemonSet would recreate it.
	IsRecreated Refusal = "its DaemonSet would recreate the Pod immediately"
	// NotTargeted means that no drain of the Node has reached the Pod.
	NotTargeted Refusal = "the drain targets of the Node do not include the Pod"
)

// Input is the input of Decide, which does not change it.
type Input struct {
	Evacuation *v1alpha1.Evacuation
	Pod        *corev1.Pod
	// Type and TypeKnown are the results of rules.PodTypeOf.
	Type      v1alpha1.PodType
	TypeKnown bool
	// Draining lists the maintenances that drain the Pod's Node, and Verdicts the verdict of each one's drain rules on the Pod.
	Draining []Draining
	Verdicts []rules.Verdict
}

// Decide returns the maintenance for which a Pod of a DaemonSet may be deleted now, or the reason why it may not. The Node must
// have the taint.
func Decide(in Input) (*v1alpha1.NodeMaintenance, Refusal) {
	e := in.Evacuation
	switch {
	case !e.IsAssignedTo(v1alpha1.EvacuatorClassDaemonSet):
		return nil, EvacuatorNotActive
	case !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer):
		return nil, NotRequested
	case !in.TypeKnown || in.Type != v1alpha1.PodTypeDaemonSet:
		return nil, NotOfDaemonSet
	case in.Pod.DeletionTimestamp != nil || rules.Finished(in.Pod):
		return nil, NotRunning
	case Tolerated(in.Pod.Spec.Tolerations):
		return nil, IsRecreated
	}
	if m := in.targetedBy(); m != nil {
		return m, NotRefused
	}
	return nil, NotTargeted
}

// targetedBy returns the first maintenance that drains the Pod, is not suspended, and whose drain has reached it. It returns nil if another
// maintenance forbids the deletion: then the Evacuation is about to be withdrawn.
//
// It uses the published drain targets, which every client can read. If the maintenance of a Machine skips the Pod and limits the rows of
// the Node, the published targets include the Pod later than plan.Decision.Targets does, and never earlier.
func (in Input) targetedBy() *v1alpha1.NodeMaintenance {
	if slices.ContainsFunc(in.Verdicts, rules.Verdict.Vetoes) {
		return nil
	}
	pod := plan.Pod{Type: in.Type, Labels: in.Pod.Labels}
	if in.Pod.Spec.Priority != nil {
		pod.Priority = *in.Pod.Spec.Priority
	}
	for i, d := range in.Draining {
		if !d.Suspended && in.Verdicts[i].Behavior == v1alpha1.DrainBehaviorDrain && plan.CoversPod(d.Targets, pod, in.Verdicts[i].Order) {
			return d.Maintenance
		}
	}
	return nil
}

// Report sets the status of the Evacuation before the Pod is deleted: the progress, the expected finish time and a message. It
// returns whether the status has changed. An Evacuation with an expected finish time is not changed, so the report is written once.
func Report(e *v1alpha1.Evacuation, by *v1alpha1.NodeMaintenance, gracePeriod time.Duration, now time.Time) (changed bool) {
	if e.Status.ExpectedEvacuationFinishTime != nil {
		return false
	}
	now = now.UTC().Truncate(time.Second) // the precision that the API server stores
	progress, finish := metav1.NewTime(now), metav1.NewTime(now.Add(gracePeriod))
	e.Status.ActiveEvacuatorCompleted = false
	e.Status.EvacuationProgressTimestamp = &progress
	e.Status.ExpectedEvacuationFinishTime = &finish
	e.Status.Message = deleting(by)
	return true
}

func deleting(by *v1alpha1.NodeMaintenance) string {
	if by.Spec.Reason != "" {
		return fmt.Sprintf("NodeMaintenance %s is draining the Node (%s): deleting the Pod; its DaemonSet recreates it after the maintenance.", by.Name,
			by.Spec.Reason)
	}
	return fmt.Sprintf("NodeMaintenance %s is draining the Node: deleting the Pod; its DaemonSet recreates it after the maintenance.", by.Name)
}

// ReportResult sets the message of the Evacuation after the deletion of the Pod was requested. A failure is the error of the API server, ""
// if there was none. It returns whether the message has changed: the error of a repeated request is written once.
func ReportResult(e *v1alpha1.Evacuation, by *v1alpha1.NodeMaintenance, failure string) (changed bool) {
	message := deleting(by)
	if failure != "" {
		message = text.Cut("Cannot delete the Pod: "+failure, text.MaxMessage)
	}
	changed = e.Status.Message != message
	e.Status.Message = message
	return changed
}
