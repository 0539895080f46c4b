package history

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Reasons of waits, besides those of package budgets and of refused evictions, which have the names that the conditions of Evacuations use,
// and those of built-in evacuators. No reason comes from users, so their number is limited.
const (
	// WaitEviction is the wait for the evictor while nothing is known to block it.
	WaitEviction = "Eviction"
	// WaitEvacuator is the wait for any other evacuator.
	WaitEvacuator = "Evacuator"
	// WaitTermination is the time from the deletion of the Pod until the Pod no longer exists.
	WaitTermination = "Termination"
	// WaitCompletion is the wait for a Pod that is not evicted and must complete.
	WaitCompletion = "Completion"
	// WaitRules is the wait for information that the drain rules depend on.
	WaitRules = "DrainRules"
	// WaitOther is the reason in a recording for the wait of a Pod without an Evacuation: it must complete, or terminates late.
	WaitOther = "Other"
)

// Kind is what a reason is about.
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

// description is the kind of a reason, and the name of the spans of its waits.
type description struct {
	kind Kind
	span string
}

var (
	ofBudget  = description{KindBudget, "await PodDisruptionBudget"}
	ofRefusal = description{KindRefused, "eviction refused"}

	descriptions = withEvacuators(map[string]description{
		WaitEviction:    {KindEviction, "evict"},
		WaitEvacuator:   {KindEvacuator, "await evacuator"},
		WaitTermination: {KindTerminate, "terminate"},
		WaitCompletion:  {KindOther, "await completion"},
		WaitRules:       {KindOther, "await drain rules"},

		string(budgets.BudgetExhausted):         ofBudget,
		string(budgets.BudgetNotObserved):       ofBudget,
		string(budgets.BudgetSyncFailed):        ofBudget,
		string(budgets.MultipleBudgets):         ofBudget,
		string(budgets.BudgetUnreadable):        ofBudget,
		string(budgets.BlockedByUnhealthyPods):  ofBudget,
		string(budgets.BudgetRemoved):           ofBudget,
		v1alpha1.ReasonDisruptionBudgetRefused:  ofBudget,
		v1alpha1.ReasonDisruptionBudgetUpdating: ofBudget,

		string(budgets.EvictionNotServed):     ofRefusal,
		v1alpha1.ReasonNamespaceTerminating:   ofRefusal,
		v1alpha1.ReasonWebhookRefused:         ofRefusal,
		v1alpha1.ReasonAdmissionPolicyRefused: ofRefusal,
		v1alpha1.ReasonAdmissionRefused:       ofRefusal,
		v1alpha1.ReasonAdmissionFailed:        ofRefusal,
		v1alpha1.ReasonEvictionForbidden:      ofRefusal,
		v1alpha1.ReasonAPIServerBusy:          ofRefusal,
		v1alpha1.ReasonNoResponse:             ofRefusal,
		v1alpha1.ReasonEvictionRefused:        ofRefusal,

		v1alpha1.ReasonReplacementReturned: {KindBackoff, "back off"},
	})
)

// withEvacuators adds the reasons of the built-in evacuators.
func withEvacuators(all map[string]description) map[string]description {
	for _, d := range evacuators.Table {
		kind := KindEvacuator
		if d.Orders {
			kind = KindOrder
		}
		for _, reason := range d.Reasons {
			all[reason] = description{kind, d.Span}
		}
	}
	return all
}

// KindOf returns the kind of a reason.
func KindOf(reason string) Kind {
	return cmp.Or(descriptions[reason].kind, KindOther)
}

// Wait is one thing that a Pod, or in a recording a Machine, waited for.
type Wait struct {
	// Reason is one of a limited number of reasons.
	Reason string
	// Object is the object that blocked the Pod, as kind and name: "PodDisruptionBudget web/db". It is empty if it is not known.
	Object string
	// Message is what the Evacuation said last during the wait.
	Message string
	// NeverAllows means that Object is a PodDisruptionBudget that never allows a disruption. It is known in recordings only.
	NeverAllows bool
	Start, End  time.Time
}

// For returns how long the wait lasted.
func (w Wait) For() time.Duration { return w.End.Sub(w.Start) }

// AwaitsBudget reports whether the wait is for a PodDisruptionBudget.
func (w Wait) AwaitsBudget() bool { return KindOf(w.Reason) == KindBudget }

// Name names what was waited for, as in "waiting for …".
func (w Wait) Name() string {
	switch {
	case w.Object != "":
		return w.Object
	case w.Reason == WaitOther || w.Reason == "":
		first, _, _ := strings.Cut(w.Message, "\n")
		return strings.TrimPrefix(first, "Waiting for ")
	}
	switch kind := KindOf(w.Reason); kind {
	case KindOther:
		return w.Reason
	case KindBudget:
		return "a PodDisruptionBudget (" + w.Reason + ")"
	case KindOrder:
		return "another replica of the StatefulSet"
	case KindBackoff:
		return "the backoff of replacements that returned"
	case KindRefused:
		return "the API server to accept the eviction (" + w.Reason + ")"
	default:
		return string(kind)
	}
}

// usualTermination is how long a termination takes that is not named among what blocked: the default grace period of Pods.
const usualTermination = corev1.DefaultTerminationGracePeriodSeconds * time.Second

// Blocks reports whether something blocked the Pod during the wait. A termination blocks if it takes longer than the default grace period.
func (w Wait) Blocks() bool {
	return w.Reason != WaitEviction && (w.Reason != WaitTermination || w.For() > usualTermination)
}

// maxWaits is the maximum number of waits of one Pod. The last one includes all that follow.
const maxWaits = 100

// Proceed ends the last of the waits when the next one starts, and adds the next one. If both are for the same, it continues the last one.
// An object that is not known may be the same.
func Proceed(waits []Wait, next Wait) []Wait {
	if len(waits) == 0 {
		return append(waits, next)
	}
	last := &waits[len(waits)-1]
	sameObject := last.Object == next.Object || last.Object == "" || next.Object == ""
	switch {
	case last.Reason == next.Reason && sameObject:
		last.Message, last.Object = cmp.Or(next.Message, last.Message), cmp.Or(last.Object, next.Object)
		last.NeverAllows = last.NeverAllows || next.NeverAllows
		return waits
	case len(waits) >= maxWaits:
		return waits
	}
	next.Start = later(next.Start, last.Start)
	last.End = next.Start
	return append(waits, next)
}

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
		if _, known := descriptions[evicting.Reason]; known {
			return Wait{Reason: evicting.Reason}
		}
		return Wait{Reason: WaitEviction}
	case class == nil && len(e.Spec.Evacuators) > 0: // the first one is about to become active
		class = &e.Spec.Evacuators[0].EvacuatorClass
	case class == nil || e.Status.ActiveEvacuatorCompleted:
		return Wait{Reason: WaitEviction}
	}
	return Wait{Reason: cmp.Or(evacuators.Of(*class).WaitReason(e), WaitEvacuator), Object: "evacuator " + *class}
}
