package history

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Reasons of waits, besides those of package budgets, of refused evictions and of the StatefulSet order, which have the names that the conditions
// of Evacuations use. No reason comes from users, so their number is limited.
const (
	// WaitEviction is the wait for the evictor while nothing is known to block it.
	WaitEviction = "Eviction"
	// WaitSurge is the wait for the replica that the built-in evacuator of Deployments adds.
	WaitSurge = "Surge"
	// WaitEvacuator is the wait for any other evacuator.
	WaitEvacuator = "Evacuator"
	// WaitTermination is the time from the deletion of the Pod until the Pod no longer exists.
	WaitTermination = "Termination"
	// WaitCompletion is the wait for a Pod that is not evicted and must complete.
	WaitCompletion = "Completion"
	// WaitRules is the wait for information that the drain rules depend on.
	WaitRules = "DrainRules"
)

// spanNames are the names of the spans of waits, by reason.
var spanNames = map[string]string{
	WaitEviction:    "evict",
	WaitSurge:       "surge",
	WaitEvacuator:   "await evacuator",
	WaitTermination: "terminate",
	WaitCompletion:  "await completion",
	WaitRules:       "await drain rules",

	string(budgets.BudgetExhausted):        "await PodDisruptionBudget",
	string(budgets.BudgetNotObserved):      "await PodDisruptionBudget",
	string(budgets.BudgetSyncFailed):       "await PodDisruptionBudget",
	string(budgets.MultipleBudgets):        "await PodDisruptionBudget",
	string(budgets.BudgetUnreadable):       "await PodDisruptionBudget",
	string(budgets.BlockedByUnhealthyPods): "await PodDisruptionBudget",
	string(budgets.BudgetRemoved):          "await PodDisruptionBudget",
	v1alpha1.ReasonBudgetRefused:           "await PodDisruptionBudget",
	v1alpha1.ReasonBudgetUpdating:          "await PodDisruptionBudget",

	string(budgets.EvictionNotServed):   "eviction refused",
	v1alpha1.ReasonNamespaceTerminating: "eviction refused",
	v1alpha1.ReasonAdmissionRefused:     "eviction refused",
	v1alpha1.ReasonAdmissionFailed:      "eviction refused",
	v1alpha1.ReasonNoResponse:           "eviction refused",
	v1alpha1.ReasonEvictionRefused:      "eviction refused",

	v1alpha1.ReasonReplacementReturned: "back off",

	v1alpha1.ReasonWaitingForReplica:        "await StatefulSet order",
	v1alpha1.ReasonWaitingForMissingReplica: "await StatefulSet order",
	v1alpha1.ReasonWaitingForHigherOrdinals: "await StatefulSet order",
}

// Wait is one thing that a Pod waited for.
type Wait struct {
	// Reason is one of a limited number of reasons.
	Reason string
	// Object is the object that blocked the Pod, as kind and name: "PodDisruptionBudget web/db". It is empty if it is not known.
	Object string
	// Message is what the Evacuation said last during the wait.
	Message    string
	Start, End time.Time
}

// awaitsBudget reports whether the wait is for a PodDisruptionBudget.
func (w Wait) awaitsBudget() bool { return spanNames[w.Reason] == "await PodDisruptionBudget" }

// maxMessage is the maximum length of the message of a wait.
const maxMessage = 256

// waitOf returns what a Pod waits for now. The reason is empty if its evacuation has not begun.
func waitOf(p Pod) Wait {
	switch {
	case p.Object.DeletionTimestamp != nil:
		return Wait{Reason: WaitTermination}
	case p.Verdict.Undecided != "":
		return Wait{Reason: WaitRules, Message: p.Verdict.Undecided}
	case p.Verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted:
		return Wait{Reason: WaitCompletion, Message: p.Verdict.Reason}
	case p.Evacuation == nil && p.Targeted:
		return Wait{Reason: WaitEviction}
	case p.Evacuation == nil:
		return Wait{}
	}
	wait := EvacuationWait(p.Evacuation)
	wait.Message = text.Cut(p.Evacuation.Status.Message, maxMessage)
	return wait
}

// EvacuationWait returns the reason and the object of the wait that the status of an Evacuation says. Tenants can write any reason there.
func EvacuationWait(e *v1alpha1.Evacuation) Wait {
	class := e.Status.ActiveEvacuatorClass
	evicting := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting)
	switch {
	case evicting != nil && (evicting.Status == metav1.ConditionTrue || evicting.Reason == v1alpha1.ReasonReplacementReturned):
		if _, known := spanNames[evicting.Reason]; known {
			return Wait{Reason: evicting.Reason}
		}
		return Wait{Reason: WaitEviction}
	case class == nil && len(e.Spec.Evacuators) > 0: // the first one is about to become active
		class = &e.Spec.Evacuators[0].EvacuatorClass
	case class == nil || e.Status.ActiveEvacuatorCompleted:
		return Wait{Reason: WaitEviction}
	}
	wait := Wait{Reason: WaitEvacuator, Object: "evacuator " + *class}
	switch *class {
	case v1alpha1.EvacuatorClassDeployment:
		wait.Reason = WaitSurge
	case v1alpha1.EvacuatorClassStatefulSet:
		if reason := statefulset.WaitReason(e); reason != "" {
			wait.Reason = reason
		}
	}
	return wait
}
