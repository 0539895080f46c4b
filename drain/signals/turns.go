package signals

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Interval is the minimum time between two signals for a Pod. Cluster API's drain retries after 20 s.
	Interval = 20 * time.Second
	// spacing is the time in which at most one signal for the Pods of a budget is sent, and at most inSpacing in the workload cluster. If the
	// budget changes before the manager observes it, a signal may evict the Pod. The spacing prevents several signals from evicting Pods at once.
	spacing   = time.Second
	inSpacing = 5
	// inFlight is the maximum number of signals without a response in the workload cluster: a webhook that hangs must not use up the evictions.
	inFlight = 4
)

// Pod is a Pod that waits for a budget, and whose eviction requests a webhook receives.
type Pod struct {
	UID    types.UID
	Budget string // "namespace/name"
}

// Sent is the last signal for a Pod.
type Sent struct {
	At       time.Time
	Budget   string
	InFlight bool // it has no response yet
}

// Next decides for which of the waiting Pods a signal is sent now, in turns: first for those without a signal, in their order, then for
// those whose last signal is the oldest. at is when to decide again, zero if no Pod waits or all their signals are in flight.
func Next(waiting []Pod, sent map[types.UID]Sent, now time.Time) (due []Pod, at time.Time) {
	recent, unanswered, busy := 0, 0, map[string]bool{}
	for _, last := range sent {
		isRecent := now.Sub(last.At) < spacing
		if isRecent {
			recent++
		}
		if last.InFlight {
			unanswered++
		}
		busy[last.Budget] = busy[last.Budget] || isRecent || last.InFlight
	}
	again := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, pod := range longestFirst(waiting, sent) {
		last, known := sent[pod.UID]
		switch {
		case last.InFlight:
		case known && now.Sub(last.At) < Interval:
			again(last.At.Add(Interval))
		case recent >= inSpacing, unanswered >= inFlight, busy[pod.Budget]:
			again(now.Add(spacing))
		default:
			recent, unanswered, busy[pod.Budget] = recent+1, unanswered+1, true
			due = append(due, pod)
			again(now.Add(Interval))
		}
	}
	return due, at
}

func longestFirst(waiting []Pod, sent map[types.UID]Sent) []Pod {
	return slices.SortedStableFunc(slices.Values(waiting), func(a, b Pod) int { return sent[a.UID].At.Compare(sent[b.UID].At) })
}
