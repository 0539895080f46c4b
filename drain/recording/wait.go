package recording

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
)

// Reasons of waits, besides those that the conditions of Evacuations have.
const (
	// WaitEviction is the time in which nothing is known to block the Pod: it is evicted and terminates.
	WaitEviction = "Eviction"
	// WaitSurge is the wait for the replica that the built-in evacuator of Deployments adds.
	WaitSurge = "Surge"
	// WaitEvacuator is the wait for any other evacuator.
	WaitEvacuator = "Evacuator"
	// WaitOther is the wait of a Pod without an Evacuation: it must complete, or terminates late.
	WaitOther = "Other"
)

// Kind is what a reason is about, and the color of a chart.
type Kind string

// The kinds of waits.
const (
	KindBudget    Kind = "PodDisruptionBudget"
	KindRefused   Kind = "eviction refused"
	KindOrder     Kind = "StatefulSet order"
	KindEvacuator Kind = "evacuator"
	KindBackoff   Kind = "backoff"
	KindEviction  Kind = "eviction and termination"
	KindOther     Kind = "other"
)

// Kinds are all kinds, in the order of a legend.
var Kinds = []Kind{KindBudget, KindRefused, KindOrder, KindEvacuator, KindBackoff, KindOther, KindEviction}

var kinds = map[string]Kind{
	WaitEviction: KindEviction, WaitSurge: KindEvacuator, WaitEvacuator: KindEvacuator,

	string(budgets.BudgetExhausted): KindBudget, string(budgets.BudgetNotObserved): KindBudget, string(budgets.BudgetSyncFailed): KindBudget,
	string(budgets.MultipleBudgets): KindBudget, string(budgets.BudgetUnreadable): KindBudget, string(budgets.BlockedByUnhealthyPods): KindBudget,
	v1alpha1.ReasonBudgetRefused: KindBudget, v1alpha1.ReasonBudgetUpdating: KindBudget,

	string(budgets.EvictionNotServed): KindRefused, v1alpha1.ReasonNamespaceTerminating: KindRefused, v1alpha1.ReasonAdmissionRefused: KindRefused,
	v1alpha1.ReasonAdmissionFailed: KindRefused, v1alpha1.ReasonNoResponse: KindRefused, v1alpha1.ReasonEvictionRefused: KindRefused,

	v1alpha1.ReasonReplacementReturned: KindBackoff,

	v1alpha1.ReasonWaitingForReplica: KindOrder, v1alpha1.ReasonWaitingForMissingReplica: KindOrder, v1alpha1.ReasonWaitingForHigherOrdinals: KindOrder,
}

// KindOf returns the kind of a reason.
func KindOf(reason string) Kind {
	if kind, known := kinds[reason]; known {
		return kind
	}
	return KindOther
}

// waitOf sets what the status of an Evacuation says. Tenants can write any reason there.
func (p *Pod) waitOf(e *v1alpha1.Evacuation, index *budgets.Index) {
	evicting := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationEvicting)
	class := e.Status.ActiveEvacuatorClass
	p.Reason = WaitEviction
	switch {
	case evicting != nil && (evicting.Status == metav1.ConditionTrue || evicting.Reason == v1alpha1.ReasonReplacementReturned):
		kind := KindOf(evicting.Reason)
		if kind != KindOther {
			p.Reason = evicting.Reason
		}
		if kind == KindBudget {
			p.budgetOf(e, index)
		}
	case class == nil || e.Status.ActiveEvacuatorCompleted:
	case *class == v1alpha1.EvacuatorClassDeployment:
		p.Reason, p.Object = WaitSurge, "evacuator "+*class
	case *class == v1alpha1.EvacuatorClassStatefulSet && statefulset.WaitReason(e) != "":
		p.Reason = statefulset.WaitReason(e)
	default:
		p.Reason, p.Object = WaitEvacuator, "evacuator "+*class
	}
}

// budgetOf sets the PodDisruptionBudget of a Pod, if it is known. An Evacuation has the labels of its Pod.
func (p *Pod) budgetOf(e *v1alpha1.Evacuation, index *budgets.Index) {
	for _, budget := range index.Covering(budgets.Pod{Namespace: e.Namespace, Name: e.Spec.PodRef.Name, Labels: e.Labels}) {
		p.Object, p.NeverAllows = "PodDisruptionBudget "+budget.String(), budget.NeverAllowsDisruption()
		return
	}
}
