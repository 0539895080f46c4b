package budgets

import (
	"fmt"
	"strings"
)

// Reason is why a pod waits.
type Reason string

const (
	// BudgetExhausted: as many pods as the budget allows are gone, or go now.
	BudgetExhausted Reason = "BudgetExhausted"
	// BudgetNotObserved: the budget's numbers are not up to date; the disruption controller will mend that.
	BudgetNotObserved Reason = "BudgetNotObserved"
	// BudgetSyncFailed: the disruption controller says that it can't compute the budget.
	BudgetSyncFailed Reason = "BudgetSyncFailed"
	// MultipleBudgets: more than one budget covers the pod, which the eviction subresource refuses.
	MultipleBudgets Reason = "MultipleBudgets"
	// BudgetUnreadable: the budget's selector can't be parsed, so it may cover the pod.
	BudgetUnreadable Reason = "BudgetUnreadable"
	// BlockedByUnhealthyPods: there would be room if all pods of the budget were ready. If the waiting pod is not, it is
	// one of those that block.
	BlockedByUnhealthyPods Reason = "BlockedByUnhealthyPods"
	// EvictionNotServed: the API server doesn't serve policy/v1, so neither budgets nor evictions.
	EvictionNotServed Reason = "EvictionNotServed"
)

// NotServed says to people what EvictionNotServed is.
const NotServed = "The API server doesn't serve evictions and disruption budgets of policy/v1"

// Unserved has all Pods wait, where the API server serves no evictions.
func Unserved(candidates []Candidate) []Waiting {
	waiting := make([]Waiting, 0, len(candidates))
	for _, candidate := range candidates {
		if candidate.UnderWay {
			continue
		}
		waiting = append(waiting, Waiting{Candidate: candidate, Reason: EvictionNotServed, Message: NotServed, Detail: NotServed})
	}
	return waiting
}

// maxText is what fits into BlockedPod.why and other status fields.
const maxText = 512

// wait makes a Waiting from what comes after the budget's name in a message. Details speak the eviction subresource's
// language, which users of Cluster API know from their Machines.
func (b *Budget) wait(reason Reason, message, detail string) *Waiting {
	never := b.err == nil && b.NeverAllowsDisruption()
	if never {
		message += ", and can never allow a disruption (" + b.requested() + ")"
	}
	return &Waiting{
		Reason:                reason,
		Message:               cut(fmt.Sprintf("waiting for disruption budget %s: %s", b, message)),
		Detail:                cut(fmt.Sprintf("The disruption budget %s %s", b.Name(), detail)),
		Budget:                b.String(),
		NeverAllowsDisruption: never,
	}
}

// isFutile says that a pod which isn't ready will wait for ever: its own budget, as the disruption controller has seen it, can
// never have room. Numbers that aren't up to date prove nothing.
func (w *Waiting) isFutile() bool {
	return w.NeverAllowsDisruption && w.Reason == BlockedByUnhealthyPods
}

// requested is what the budget's spec asks for.
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

// refuse is nil if exactly one budget covers the pod, and it can be read. More than one is a refusal for sure, so that is
// what is said first; a budget that can't be read only may cover the pod.
func refuse(covering []*Budget) *Waiting {
	var readable []string
	var unreadable *Budget
	for _, b := range covering {
		switch {
		case b.err == nil:
			readable = append(readable, b.String())
		case unreadable == nil:
			unreadable = b
		}
	}
	switch {
	case len(readable) > 1:
		return waitMultiple(readable)
	case unreadable != nil:
		return unreadable.wait(BudgetUnreadable, "its selector can't be parsed",
			"may cover this pod; its selector can't be parsed: "+unreadable.err.Error())
	default:
		return nil
	}
}

func waitMultiple(names []string) *Waiting {
	const shown = 3
	list := strings.Join(names[:min(shown, len(names))], ", ")
	if len(names) > shown {
		list += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	text := cut("the eviction API refuses pods with more than one disruption budget: " + list)
	return &Waiting{Reason: MultipleBudgets, Message: text, Detail: text, Budget: names[0]}
}

func (b *Budget) waitStale() *Waiting {
	return b.wait(BudgetNotObserved, "still being processed", "has not been seen since our last eviction")
}

// waitForDisruption explains why there is none, in the order in which it is best understood: what is wrong with the budget
// itself, whose numbers mean nothing then; what is wrong with its pods; and that it is used up.
func (b *Budget) waitForDisruption(pod Pod) *Waiting {
	if message, failed := b.syncFailure(); failed && b.allowed() == 0 {
		return b.wait(BudgetSyncFailed, "the disruption controller can't compute it",
			"does not allow evicting pods currently because it failed sync: "+message)
	}
	if lag := b.lag(); lag != "" {
		return b.wait(BudgetNotObserved, "still being processed", "is still being processed by the server: "+lag)
	}
	if b.allowed() == 0 {
		if blocked := b.waitForUnready(pod); blocked != nil {
			return blocked
		}
	}
	return b.waitExhausted()
}

// lag says in what the disruption controller is behind; empty if it isn't.
func (b *Budget) lag() string {
	status := b.pdb.Status
	switch {
	case !b.observed():
		return fmt.Sprintf("its generation is %d, observed was %d", b.pdb.Generation, status.ObservedGeneration)
	case status.DisruptionsAllowed < 0: // the API server forbids evictions then
		return fmt.Sprintf("it allows %d disruptions", status.DisruptionsAllowed)
	case len(status.DisruptedPods) > maxDisruptedPods: // likewise
		return fmt.Sprintf("%d evictions are not confirmed", len(status.DisruptedPods))
	default:
		return ""
	}
}

// waitForUnready is nil unless pods that aren't ready are what leaves no room (E21).
//
// They are if fewer pods are healthy than needed: no disruption that the budget allowed explains that. If just as many
// are, one may be unready because its predecessor was evicted a moment ago, and the API server lets unready ones go.
func (b *Budget) waitForUnready(pod Pod) *Waiting {
	status := b.pdb.Status
	numbers := fmt.Sprintf("has %d of %d pods healthy, %d needed", status.CurrentHealthy, status.ExpectedPods, status.DesiredHealthy)
	switch {
	case !pod.Ready:
		return b.wait(BlockedByUnhealthyPods, "this pod is not ready and blocks its own budget, which "+b.requirement(), numbers)
	case status.CurrentHealthy < status.DesiredHealthy && status.CurrentHealthy < status.ExpectedPods && !b.NeverAllowsDisruption():
		return b.wait(BlockedByUnhealthyPods, "pods that are not ready block it; "+b.requirement(), numbers)
	default:
		return nil
	}
}

func (b *Budget) waitExhausted() *Waiting {
	status := b.pdb.Status
	detail := fmt.Sprintf("needs %d healthy pods and has %d currently", status.DesiredHealthy, status.CurrentHealthy)
	if b.allowed() > 0 {
		detail += fmt.Sprintf("; other pods take its room of %d now", b.allowed())
	}
	return b.wait(BudgetExhausted, b.requirement(), detail)
}

// requirement is stable: how many healthy pods are needed follows from spec and scale, how many there are changes all the time.
func (b *Budget) requirement() string {
	if b.pdb.Status.DesiredHealthy == 1 {
		return "needs 1 healthy pod"
	}
	return fmt.Sprintf("needs %d healthy pods", b.pdb.Status.DesiredHealthy)
}

// cut shortens a text that holds a tenant's input.
func cut(text string) string {
	return fmt.Sprintf("%.*s", maxText, text)
}
