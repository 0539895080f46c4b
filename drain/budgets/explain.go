package budgets

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Reason is why a Pod waits.
type Reason string

// Reasons of the condition Evicting of Evacuations, before the eviction is attempted.
const (
	// BudgetExhausted means that the budget allows no disruption, or other Pods use the disruptions that it allows.
	BudgetExhausted Reason = "BudgetExhausted"
	// BudgetNotObserved means that the status of the budget is not up to date. The disruption controller updates it.
	BudgetNotObserved Reason = "BudgetNotObserved"
	// BudgetSyncFailed means that the disruption controller reports that it cannot compute the budget.
	BudgetSyncFailed Reason = "BudgetSyncFailed"
	// MultipleBudgets means that more than one budget selects the Pod, which the eviction subresource does not support.
	MultipleBudgets Reason = "MultipleBudgets"
	// BudgetUnreadable means that the selector of the budget is invalid, so that the budget may be meant for the Pod.
	BudgetUnreadable Reason = "BudgetUnreadable"
	// BlockedByUnhealthyPods means that the budget would allow a disruption if all its Pods were ready, or the waiting Pod itself is
	// not ready.
	BlockedByUnhealthyPods Reason = "BlockedByUnhealthyPods"
	// BudgetRemoved means that the Pod has lost a budget a moment ago: the budget was deleted, or does not select the Pod any more.
	BudgetRemoved Reason = "BudgetRemoved"
	// EvictionNotServed means that the API server does not serve policy/v1, so neither PodDisruptionBudgets nor evictions.
	EvictionNotServed Reason = "EvictionNotServed"
)

// NotServed is the message of EvictionNotServed.
const NotServed = "The API server does not serve evictions and PodDisruptionBudgets of policy/v1"

// Unserved returns all candidates as waiting, for an API server that serves no evictions.
func Unserved(candidates []Candidate) []Waiting {
	waiting := make([]Waiting, 0, len(candidates))
	for _, candidate := range candidates {
		if !candidate.InFlight {
			waiting = append(waiting, Waiting{Candidate: candidate, Reason: EvictionNotServed, Message: NotServed})
		}
	}
	return waiting
}

// Waits returns the candidate as waiting because of the loss: see Pauses.
func (l Loss) Waits(c Candidate) Waiting {
	const deleted, changed = "PodDisruptionBudget %s, which selected the Pod, was deleted", "PodDisruptionBudget %s does not select the Pod any more"
	what := changed
	if l.Deleted {
		what = deleted
	}
	message := fmt.Sprintf("Waiting %.0f s since "+what+"; another one may replace it", LossCounts.Seconds(), l.Budget)
	return Waiting{Candidate: c, Reason: BudgetRemoved, Message: text.Cut(message, text.MaxMessage), Budget: l.Budget}
}

// wait returns a Waiting for the budget. why follows the name of the budget in the message.
func (b *Budget) wait(reason Reason, why string) *Waiting {
	never := b.err == nil && b.NeverAllowsDisruption()
	if never {
		why += "; it never allows a disruption (" + b.requested() + ")"
	}
	message := text.Cut(fmt.Sprintf("Waiting for PodDisruptionBudget %s: %s", b, why), text.MaxMessage)
	return &Waiting{Reason: reason, Message: message, Budget: b.String(), NeverAllowsDisruption: never}
}

// IsReported reports whether an Evacuation, with this reason and message, says already that the disruption controller cannot compute the
// budget. The controller reports the error of any Pod of the budget, and may report that of another one each time, so the words that were
// reported first stay.
func (w Waiting) IsReported(reason, message string) bool {
	return w.Reason == BudgetSyncFailed && reason == string(w.Reason) && strings.HasPrefix(message, "Waiting for PodDisruptionBudget "+w.Budget+": ")
}

// requested returns what the spec of the budget requests.
func (b *Budget) requested() string {
	switch maxUnavailable, minAvailable := b.pdb.Spec.MaxUnavailable, b.pdb.Spec.MinAvailable; {
	case maxUnavailable != nil:
		return "maxUnavailable: " + maxUnavailable.String()
	case minAvailable != nil:
		return "minAvailable: " + minAvailable.String()
	default:
		return "neither minAvailable nor maxUnavailable is set"
	}
}

// waitForSelectors returns nil if exactly one budget selects the Pod and its selector is valid. It reports several valid budgets first: the
// API server refuses an eviction because of them, and not because of an invalid one.
func waitForSelectors(selecting []*Budget) *Waiting {
	var valid []string
	var invalid *Budget
	for _, b := range selecting {
		switch {
		case b.err == nil:
			valid = append(valid, b.String())
		case invalid == nil:
			invalid = b
		}
	}
	switch {
	case len(valid) > 1:
		const shown = 3
		message := "More than one PodDisruptionBudget selects this Pod, so Kubernetes cannot evict it: " + text.List(valid, shown)
		return &Waiting{Reason: MultipleBudgets, Message: text.Cut(message, text.MaxMessage), Budget: valid[0]}
	case invalid != nil:
		return invalid.wait(BudgetUnreadable, "its selector is invalid")
	default:
		return nil
	}
}

func (b *Budget) waitStale() *Waiting {
	wait := b.waitUntilObserved()
	wait.Stale = true
	return wait
}

func (b *Budget) waitUntilObserved() *Waiting {
	return b.wait(BudgetNotObserved, "the disruption controller has not updated its status yet")
}

// waitForDisruption returns why the budget allows no disruption. A budget that is not computed or not up to date comes first, since its
// numbers are not valid.
func (b *Budget) waitForDisruption(pod Pod) *Waiting {
	status := b.pdb.Status
	required := fmt.Sprintf("%d healthy Pods required", status.DesiredHealthy)
	if status.DesiredHealthy == 1 {
		required = "1 healthy Pod required"
	}
	failure := b.syncFailure()
	switch {
	case failure != nil && b.allowed() == 0:
		why := "the disruption controller cannot compute it"
		if message := text.Line(failure.Message, text.MaxMessage/2); message != "" {
			why += ": " + message
		}
		return b.wait(BudgetSyncFailed, why)
	case !b.upToDate():
		return b.waitUntilObserved()
	case b.allowed() > 0:
		wait := b.wait(BudgetExhausted, required)
		wait.Reserved = true
		return wait
	}
	reason := BudgetExhausted
	switch {
	case !pod.Ready:
		reason, required = BlockedByUnhealthyPods, "this Pod is not ready; "+required
	case status.CurrentHealthy < status.DesiredHealthy && status.CurrentHealthy < status.ExpectedPods && !b.NeverAllowsDisruption():
		// If exactly the required number is healthy, one may be unready because its predecessor was evicted a moment ago, and the API server
		// allows the eviction of Pods that are not ready.
		reason, required = BlockedByUnhealthyPods, "some of its Pods are not ready; "+required
	}
	if !pod.Controlled && b.CountsNoPod() {
		const message = "PodDisruptionBudget %s selects only Pods without a controller, for which Kubernetes supports only an integer minAvailable; it never " +
			"allows a disruption"
		return &Waiting{Reason: reason, Message: text.Cut(fmt.Sprintf(message, b), text.MaxMessage), Budget: b.String(), NeverAllowsDisruption: true}
	}
	return b.wait(reason, required)
}

// CountsNoPod reports whether the disruption controller counts none of the Pods of the budget. With maxUnavailable or a percentage it
// counts the replicas of their controllers.
func (b *Budget) CountsNoPod() bool {
	minAvailable := b.pdb.Spec.MinAvailable
	return b.pdb.Status.ExpectedPods == 0 && (b.pdb.Spec.MaxUnavailable != nil || minAvailable != nil && minAvailable.Type == intstr.String)
}
