package signals

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Interval is the minimum time between two signals for a Pod. Cluster API's drain retries after 20 s.
	Interval = 20 * time.Second
	// spacing is the time in which at most one signal for the Pods of a budget is sent, and at most inSpacing in the workload cluster. If the
	// budget changes before the manager observes it, a signal may evict the Pod. The spacing prevents several signals from evicting Pods at
	// once.
	spacing   = time.Second
	inSpacing = 5
	// inFlight is the maximum number of signals without a response in the workload cluster, and inFlightOfNamespace in a Namespace: a webhook
	// that hangs must not use up the evictions, nor the signals for other Namespaces.
	inFlight            = 4
	inFlightOfNamespace = 2
)

// Pod is a Pod that waits for a budget, and whose eviction requests a webhook receives.
type Pod struct {
	UID    types.UID
	Budget string // "namespace/name"
	// DrainStart is the start of the drain of the Pod's Node.
	DrainStart time.Time
	// NeverAllows means that the budget never allows a disruption.
	NeverAllows bool
}

// Sent is the last signal for a Pod.
type Sent struct {
	At       time.Time
	Budget   string
	InFlight bool // it has no response yet
}

// Next decides for which of the waiting Pods a signal is sent now, in turns: first for those without a signal, in their order, then for
// those whose last signal is the oldest. The Namespaces take turns in the same way: Pods that are created again and again delay only those
// of their Namespace. If a budget may allow a disruption, only Pods of the oldest drain among its Pods get signals: the API server may
// evict them. at is when to decide again, zero if no Pod waits or all their signals are in flight.
func Next(waiting []Pod, sent map[types.UID]Sent, now time.Time) (due []Pod, at time.Time) {
	again := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	var ready []Pod // one of each budget
	oldest, used := oldestDrains(waiting), useOf(sent, now)
	for _, pod := range longestFirst(waiting, sent) {
		last, known := sent[pod.UID]
		switch {
		case last.InFlight, !pod.NeverAllows && oldest[pod.Budget].Before(pod.DrainStart):
		case known && now.Sub(last.At) < Interval:
			again(last.At.Add(Interval))
		case used.budgets[pod.Budget]:
			again(now.Add(spacing))
		default:
			used.budgets[pod.Budget] = true
			ready = append(ready, pod)
		}
	}
	for _, pod := range inTurns(ready, used.lastIn) {
		if !used.take(namespaceOf(pod.Budget)) {
			again(now.Add(spacing))
			continue
		}
		due = append(due, pod)
		again(now.Add(Interval))
	}
	return due, at
}

// use is how much of the limits signals use.
type use struct {
	recent, unanswered int
	unansweredIn       map[string]int       // by Namespace
	lastIn             map[string]time.Time // the last signal, by Namespace
	budgets            map[string]bool      // those for whose Pods no signal is sent now
}

func useOf(sent map[types.UID]Sent, now time.Time) use {
	used := use{unansweredIn: map[string]int{}, lastIn: map[string]time.Time{}, budgets: map[string]bool{}}
	for _, last := range sent {
		isRecent, namespace := now.Sub(last.At) < spacing, namespaceOf(last.Budget)
		if isRecent {
			used.recent++
		}
		if last.InFlight {
			used.unanswered++
			used.unansweredIn[namespace]++
		}
		if last.At.After(used.lastIn[namespace]) {
			used.lastIn[namespace] = last.At
		}
		used.budgets[last.Budget] = used.budgets[last.Budget] || isRecent || last.InFlight
	}
	return used
}

// take adds a signal for a Pod of a Namespace. It returns false if the limits do not permit one.
func (u *use) take(namespace string) bool {
	if u.recent >= inSpacing || u.unanswered >= inFlight || u.unansweredIn[namespace] >= inFlightOfNamespace {
		return false
	}
	u.recent, u.unanswered = u.recent+1, u.unanswered+1
	u.unansweredIn[namespace]++
	return true
}

func namespaceOf(budget string) string {
	namespace, _, _ := strings.Cut(budget, "/")
	return namespace
}

// oldestDrains returns the start of the oldest drain of the waiting Pods of each budget.
func oldestDrains(waiting []Pod) map[string]time.Time {
	oldest := map[string]time.Time{}
	for _, pod := range waiting {
		if start, known := oldest[pod.Budget]; !known || pod.DrainStart.Before(start) {
			oldest[pod.Budget] = pod.DrainStart
		}
	}
	return oldest
}

func longestFirst(waiting []Pod, sent map[types.UID]Sent) []Pod {
	return slices.SortedStableFunc(slices.Values(waiting), func(a, b Pod) int { return sent[a.UID].At.Compare(sent[b.UID].At) })
}

// inTurns returns the Pods in the order in which their Namespaces take turns: the first Pod of each Namespace, then the second one of each.
// First is the Namespace whose last signal is the oldest.
func inTurns(pods []Pod, lastIn map[string]time.Time) []Pod {
	nth, before := map[types.UID]int{}, map[string]int{}
	for _, pod := range pods {
		namespace := namespaceOf(pod.Budget)
		nth[pod.UID] = before[namespace]
		before[namespace]++
	}
	return slices.SortedStableFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(cmp.Compare(nth[a.UID], nth[b.UID]), lastIn[namespaceOf(a.Budget)].Compare(lastIn[namespaceOf(b.Budget)]))
	})
}
