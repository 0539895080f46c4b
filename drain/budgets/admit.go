package budgets

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what the eviction subresource looks at in a pod, and where the pod is.
type Pod struct {
	UID                   types.UID
	Namespace, Name, Node string
	Labels                map[string]string
	Ready                 bool // the condition Ready is True
	Phase                 corev1.PodPhase
	Terminating           bool // it has a deletionTimestamp
}

// needsNoBudget is what the API server calls canIgnorePDB: the pod serves nobody yet, or not any more.
func (p Pod) needsNoBudget() bool {
	switch p.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	default:
		return p.Terminating
	}
}

// Candidate is a pod that is to be evicted as soon as possible.
type Candidate struct {
	Pod Pod

	// DeleteUnready says that the pod is to be deleted where it isn't ready and its own budget can never have room: it serves
	// nobody, and to wait for the budget would be to wait for ever (E21).
	DeleteUnready bool

	// UnderWay: its eviction has begun, and isn't answered yet. The pod isn't admitted again, and the room that it may be about to
	// take is given to nobody else. Pod is as it was admitted, not as it is seen now: that it ends may be seen before its budget's
	// new status is.
	UnderWay bool
}

// Admitted is a candidate that may be evicted now.
type Admitted struct {
	Candidate

	// Budget by whose leave it goes; nil if it needs none.
	Budget *Budget

	// ConsumesRoom says that the eviction will change the budget's status. Until that change is seen, the budget is stale.
	ConsumesRoom bool

	// Delete says that the pod is to be deleted, since an eviction would be refused for ever: see Candidate.DeleteUnready.
	Delete bool
}

// Waiting is a candidate that an eviction would be refused for.
type Waiting struct {
	Candidate

	Reason Reason

	// Message says what the pod waits for. It doesn't change while only numbers of pods do, so that a status which holds
	// it isn't written again at every event.
	Message string

	// Detail has the present numbers.
	Detail string

	// Budget is the "namespace/name" of the budget to wait for; the first one by name if there are several.
	Budget string

	// NeverAllowsDisruption says that waiting will not help, see Budget.NeverAllowsDisruption.
	NeverAllowsDisruption bool
}

// Admit decides which candidates may be evicted now. Those that come first get the room: see FairOrder. Pods that share a
// budget are admitted no more than it has room, those that are under way included. A pod that is listed twice counts once.
//
// It takes time proportional to the candidates times the budgets of their namespaces.
func (i *Index) Admit(candidates []Candidate) (admitted []Admitted, waiting []Waiting) {
	taken := map[*Budget]int{}
	seen := map[identity]bool{}
	for _, c := range candidates {
		if !c.UnderWay || seen[c.Pod.identity()] {
			continue
		}
		seen[c.Pod.identity()] = true
		if decision := i.decide(c.Pod, taken); decision.needsRoom {
			taken[decision.budget]++
		}
	}
	for _, c := range candidates {
		if seen[c.Pod.identity()] {
			continue
		}
		seen[c.Pod.identity()] = true

		decision := i.decide(c.Pod, taken)
		if decision.wait != nil && c.DeleteUnready && !c.Pod.Ready && decision.wait.isFutile() {
			admitted = append(admitted, Admitted{Candidate: c, Delete: true})
			continue
		}
		if decision.wait != nil {
			decision.wait.Candidate = c
			waiting = append(waiting, *decision.wait)
			continue
		}
		if decision.needsRoom {
			taken[decision.budget]++
		}
		admitted = append(admitted, Admitted{Candidate: c, Budget: decision.budget, ConsumesRoom: decision.needsRoom})
	}
	return admitted, waiting
}

// identity tells pods apart; a pod that was made anew under its name has another UID.
type identity struct {
	uid             types.UID
	namespace, name string
}

func (p Pod) identity() identity { return identity{p.UID, p.Namespace, p.Name} }

// decision about one pod: it goes unless wait says why not.
type decision struct {
	budget    *Budget
	needsRoom bool
	wait      *Waiting
}

// decide goes through the steps of the package documentation in their order; taken is the room that is given away already.
func (i *Index) decide(pod Pod, taken map[*Budget]int) decision {
	if pod.needsNoBudget() {
		return decision{}
	}
	covering := i.Covering(pod)
	if len(covering) == 0 {
		return decision{}
	}
	if wait := refuse(covering); wait != nil {
		return decision{wait: wait}
	}
	budget := covering[0]
	switch {
	case !pod.Ready && budget.alwaysAllowsUnready():
		return decision{budget: budget}
	case i.stale[budget]:
		return decision{wait: budget.waitStale()}
	case !pod.Ready && budget.healthy():
		return decision{budget: budget}
	case budget.allowed() > taken[budget]:
		return decision{budget: budget, needsRoom: true}
	default:
		return decision{wait: budget.waitForDisruption(pod)}
	}
}
