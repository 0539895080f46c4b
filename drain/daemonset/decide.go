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
)

// Refusal is why a Pod isn't deleted. There is never anything to report to the Evacuation: activeEvacuatorCompleted says that
// the next evacuator may try, and nobody else should.
type Refusal string

const (
	// NotRefused: delete it.
	NotRefused Refusal = ""
	// NotItsTurn: another evacuator is active, or none, or ours has completed.
	NotItsTurn Refusal = "it is not the turn of " + v1alpha1.EvacuatorClassDaemonSet
	// NotAsked: no NodeMaintenance asks for the Evacuation. The life of these Pods is tied to the Node's.
	NotAsked Refusal = "no NodeMaintenance asks for the Evacuation"
	// NotOfDaemonSet: it isn't known to be a Pod of a DaemonSet that exists.
	NotOfDaemonSet Refusal = "it is no Pod of a DaemonSet"
	// NotRunning: it terminates or has finished already.
	NotRunning Refusal = "the Pod is terminating or has finished"
	// ComesBack: its DaemonSet tolerates our taint.
	ComesBack Refusal = "its DaemonSet would replace it at once"
	// NotTargeted: no drain on the Node has come to it.
	NotTargeted Refusal = "the drain targets of the Node don't include it"
)

// Input is all that Decide looks at. It is not changed.
type Input struct {
	Evacuation *v1alpha1.Evacuation
	Pod        *corev1.Pod
	// Type and TypeKnown are the results of rules.PodTypeOf.
	Type      v1alpha1.PodType
	TypeKnown bool
	// Draining are the maintenances of the Pod's Node, and Verdicts what the rules of each one say about the Pod.
	Draining []Draining
	Verdicts []rules.Verdict
}

// Decide says whether a Pod of a DaemonSet may be deleted now, and for which maintenance. The Node must have our taint.
func Decide(in Input) (*v1alpha1.NodeMaintenance, Refusal) {
	e := in.Evacuation
	switch {
	case e.Status.ActiveEvacuatorClass == nil || *e.Status.ActiveEvacuatorClass != v1alpha1.EvacuatorClassDaemonSet || e.Status.ActiveEvacuatorCompleted:
		return nil, NotItsTurn
	case !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer):
		return nil, NotAsked
	case !in.TypeKnown || in.Type != v1alpha1.PodTypeDaemonSet:
		return nil, NotOfDaemonSet
	case in.Pod.DeletionTimestamp != nil || rules.Finished(in.Pod):
		return nil, NotRunning
	case Tolerated(in.Pod.Spec.Tolerations):
		return nil, ComesBack
	}
	if m := in.targetedBy(); m != nil {
		return m, NotRefused
	}
	return nil, NotTargeted
}

// targetedBy returns the first maintenance that has the Pod go, and whose drain has come to it. Nil also where another one
// forbids to touch it: the Evacuation is about to be withdrawn.
//
// It goes by what is published, which is what everybody sees. Where a maintenance that skips the Pod holds the rows of the
// Node back, that is later than plan.Decision.Targets would have it, and never earlier.
func (in Input) targetedBy() *v1alpha1.NodeMaintenance {
	forbids := func(v rules.Verdict) bool {
		return v.Behavior != v1alpha1.DrainBehaviorDrain && v.Behavior != v1alpha1.DrainBehaviorSkip
	}
	if slices.ContainsFunc(in.Verdicts, forbids) {
		return nil
	}
	pod := plan.Pod{Type: in.Type, Labels: in.Pod.Labels}
	if in.Pod.Spec.Priority != nil {
		pod.Priority = *in.Pod.Spec.Priority
	}
	for i, d := range in.Draining {
		if in.Verdicts[i].Behavior == v1alpha1.DrainBehaviorDrain && plan.CoversPod(d.Targets, pod, in.Verdicts[i].Order) {
			return d.Maintenance
		}
	}
	return nil
}

// Report notes on the Evacuation that the Pod is deleted now, and until when it may take. It says whether that changes
// anything: it is said once.
func Report(e *v1alpha1.Evacuation, by *v1alpha1.NodeMaintenance, gracePeriod time.Duration, now time.Time) (changed bool) {
	if e.Status.ExpectedEvacuationFinishTime != nil {
		return false
	}
	now = now.UTC().Truncate(time.Second) // as the API server will give it back
	progress, finish := metav1.NewTime(now), metav1.NewTime(now.Add(gracePeriod))
	e.Status.ActiveEvacuatorCompleted = false
	e.Status.EvacuationProgressTimestamp = &progress
	e.Status.ExpectedEvacuationFinishTime = &finish
	e.Status.Message = fmt.Sprintf("NodeMaintenance %s drains the Node: the Pod is deleted, and comes back after the maintenance.", by.Name)
	if by.Spec.Reason != "" {
		e.Status.Message = fmt.Sprintf("NodeMaintenance %s drains the Node (%s): the Pod is deleted, and comes back after the maintenance.", by.Name, by.Spec.Reason)
	}
	return true
}

// GracePeriod is the time that the Pod has to terminate. seconds is what to ask for, nil for the Pod's own: on a Node that
// doesn't answer nobody waits for it.
func GracePeriod(pod *corev1.Pod, nodeUnreachable bool) (period time.Duration, seconds *int64) {
	switch {
	case nodeUnreachable:
		least := rules.UnreachableGracePeriodSeconds
		return time.Duration(least) * time.Second, &least
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second, nil
	default:
		return corev1.DefaultTerminationGracePeriodSeconds * time.Second, nil
	}
}
