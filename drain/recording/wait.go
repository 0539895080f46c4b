package recording

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

// WaitOther is the reason of the wait of a Pod without an Evacuation: it must complete, or terminates late. The other reasons are those of
// package history.
const WaitOther = "Other"

// usualTermination is how long a termination takes that is not named among what blocked: the default grace period of Pods.
const usualTermination = corev1.DefaultTerminationGracePeriodSeconds * time.Second

// Kind is what a reason is about, and the color of a chart.
type Kind string

// The kinds of waits.
const (
	KindBudget    Kind = "PodDisruptionBudget"
	KindRefused   Kind = "eviction refused"
	KindOrder     Kind = "StatefulSet order"
	KindEvacuator Kind = "evacuator"
	KindBackoff   Kind = "backoff"
	KindOther     Kind = "other"
	KindEviction  Kind = "eviction"
	KindTerminate Kind = "termination"
)

// Kinds are all kinds, in the order of a legend.
var Kinds = []Kind{KindBudget, KindRefused, KindOrder, KindEvacuator, KindBackoff, KindOther, KindEviction, KindTerminate}

var kinds = map[string]Kind{
	history.WaitEviction: KindEviction, history.WaitTermination: KindTerminate, history.WaitSurge: KindEvacuator, history.WaitEvacuator: KindEvacuator,

	string(budgets.BudgetExhausted): KindBudget, string(budgets.BudgetNotObserved): KindBudget, string(budgets.BudgetSyncFailed): KindBudget,
	string(budgets.MultipleBudgets): KindBudget, string(budgets.BudgetUnreadable): KindBudget, string(budgets.BlockedByUnhealthyPods): KindBudget,
	string(budgets.BudgetRemoved): KindBudget, v1alpha1.ReasonBudgetRefused: KindBudget, v1alpha1.ReasonBudgetUpdating: KindBudget,

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

// waitOf sets what the status of an Evacuation says.
func (p *Pod) waitOf(e *v1alpha1.Evacuation, index *budgets.Index) {
	wait := history.EvacuationWait(e)
	p.Reason, p.Object = wait.Reason, wait.Object
	if KindOf(p.Reason) == KindBudget {
		p.budgetOf(e, index)
	}
}

// budgetOf sets the PodDisruptionBudget of a Pod, if it is known. An Evacuation has the labels of its Pod.
func (p *Pod) budgetOf(e *v1alpha1.Evacuation, index *budgets.Index) {
	for _, budget := range index.Covering(budgets.Pod{Namespace: e.Namespace, Name: e.Spec.PodRef.Name, Labels: e.Labels}) {
		p.Object, p.NeverAllows = "PodDisruptionBudget "+budget.String(), budget.NeverAllowsDisruption()
		return
	}
}
