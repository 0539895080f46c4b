package main

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// sample is what was measured in one run of one candidate.
type sample struct {
	Candidate string   `json:"candidate"`
	Nodes     []string `json:"nodes"`
	Pods      int      `json:"pods"`
	Seconds   float64  `json:"seconds"`
	// Evictions are the calls of the eviction API, Refused those that weren't answered with success.
	Evictions int `json:"evictions"`
	Refused   int `json:"refused"`
	// EvictedPerPod is how often each pod, or the one that came for it, was evicted: 1 where none lands on a node that goes later.
	EvictedPerPod float64 `json:"evicted_per_pod"`
	// Answers counts the evictions by the HTTP status of their answers.
	Answers map[int]int `json:"answers"`
	// Writes to the workload cluster by verb and resource, evictions included, events (the API objects) not.
	Writes       map[string]int `json:"writes"`
	WritesPerPod float64        `json:"writes_per_pod"`
	// CallsPerPod counts reads and watches too.
	CallsPerPod float64   `json:"calls_per_pod"`
	Breakdown   breakdown `json:"breakdown"`
	Steps       []stepAt  `json:"steps,omitempty"`
	// Violations of what evictions have to be like, see violations.
	Violations []string `json:"violations,omitempty"`
	// LoadAverage of the machine when the run began: how busy it was with other things.
	LoadAverage string `json:"load_average,omitempty"`
}

func (s sample) evictionsPerPod() float64 { return float64(s.Evictions) / float64(max(s.Pods, 1)) }

// breakdown says where the time of a run has gone. It is made from the audit log's times and those of the budget's changes.
type breakdown struct {
	// Start: from the start to the first eviction.
	Start float64 `json:"start_seconds"`
	// Rounds is how often room came up while no eviction was under way; RoundMedian and RoundMax are how long it took until
	// the next one; Idle is how long in all there was room and nobody used it, from the first eviction to the last: the mean
	// of all budgets.
	Rounds      int     `json:"rounds"`
	RoundMedian float64 `json:"round_median_seconds"`
	RoundMax    float64 `json:"round_max_seconds"`
	Idle        float64 `json:"idle_seconds"`
	// Calls is how long eviction calls were under way, one after the other.
	Calls float64 `json:"calls_seconds"`
	// End: from the end of the last pod to the end.
	End float64 `json:"end_seconds"`
	// Own is the part of the time that the candidate alone is responsible for: start, idle and end. The rest is that of eviction
	// calls, and of waiting for room.
	Own float64 `json:"own_seconds"`
}

// step is a moment in a run; the zero time if it hasn't come.
type step struct {
	name string
	at   time.Time
}

// stepAt is a step, in seconds from the start of the run.
type stepAt struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

func newSample(c candidate, l load, t target, taken span, events controlplane.Events, history rooms) sample {
	requests := c.requests(events)
	evictions := requests.Verb("create").Resource("pods", "eviction")
	s := sample{
		Candidate: c.name, Nodes: t.nodes, Pods: len(t.pods), Seconds: taken.ended.Sub(taken.started).Seconds(),
		Evictions: len(evictions), Refused: len(evictions.Failed()), Answers: map[int]int{},
		Writes: map[string]int{}, Violations: violations(l, t, evictions),
	}
	s.EvictedPerPod = float64(s.Evictions-s.Refused) / float64(max(s.Pods, 1))
	for _, eviction := range evictions {
		s.Answers[eviction.Code]++
	}
	writes := 0
	for _, write := range requests.Writes() {
		if write.Resource == "events" {
			continue
		}
		writes++
		s.Writes[describe(write)]++
	}
	if len(t.pods) > 0 {
		s.WritesPerPod = float64(writes) / float64(len(t.pods))
		s.CallsPerPod = float64(len(requests)) / float64(len(t.pods))
	}
	gone := lastGone(t, events)
	s.Breakdown = newBreakdown(taken, evictions, history, gone)
	if c.steps != nil {
		// What comes after the end of the span isn't on the way to it.
		steps := c.steps(requests.Where(func(e controlplane.Event) bool { return !e.Requested.After(taken.ended) }))
		for _, each := range append(steps, step{"last pod gone", gone}, step{"end", taken.ended}) {
			if !each.at.IsZero() {
				s.Steps = append(s.Steps, stepAt{each.name, each.at.Sub(taken.started).Seconds()})
			}
		}
	}
	return s
}

func describe(write controlplane.Event) string {
	resource := write.Resource
	if write.Subresource != "" {
		resource += "/" + write.Subresource
	}
	return write.Verb + " " + resource
}

func newBreakdown(taken span, evictions controlplane.Events, history rooms, gone time.Time) breakdown {
	b := breakdown{}
	if len(evictions) == 0 || gone.IsZero() {
		return b
	}
	begin := evictions[0].Requested
	for _, eviction := range evictions {
		if eviction.Requested.Before(begin) {
			begin = eviction.Requested
		}
		b.Calls += eviction.Answered.Sub(eviction.Requested).Seconds()
	}
	// A watch may tell that a pod is gone before the kubelet has its answer.
	b.Start, b.End = begin.Sub(taken.started).Seconds(), max(0, taken.ended.Sub(gone).Seconds())
	var rounds []float64
	budgets := float64(max(1, len(history)))
	for _, stretch := range unusedIn(history, evictions) {
		b.Idle += stretch.length.Seconds() / budgets
		if stretch.round {
			rounds = append(rounds, stretch.length.Seconds())
			b.RoundMax = max(b.RoundMax, stretch.length.Seconds())
		}
	}
	b.Rounds, b.RoundMedian = len(rounds), median(rounds)
	b.Own = b.Start + b.Idle + b.End
	return b
}

// lastGone is when the last pod of the target was gone.
func lastGone(t target, events controlplane.Events) time.Time {
	names := sets.New[string]()
	for i := range t.pods {
		names.Insert(t.pods[i].Name)
	}
	var gone time.Time
	for _, event := range events.Verb("delete").Resource("pods").InNamespace(appNamespace).Succeeded() {
		// The first deletion by the kubelet ends the pod. It sometimes asks twice, but then isn't told that it succeeded.
		if names.Has(event.Name) && event.Answered.After(gone) {
			gone = event.Answered
		}
	}
	return gone
}

// violations says what is wrong with evictions by somebody who claims to evict each pod of the target once, and no other pod,
// not even one that has come after it under its name. Where several nodes go, a pod may land on one that isn't cordoned yet,
// and has to go again.
func violations(l load, t target, evictions controlplane.Events) []string {
	wanted, done := map[string]types.UID{}, sets.New[types.UID]()
	for i := range t.pods {
		wanted[t.pods[i].Name] = t.pods[i].UID
	}
	var found []string
	for _, eviction := range evictions {
		uid := eviction.UIDPrecondition()
		switch {
		case uid == "":
			found = append(found, fmt.Sprintf("pod %s was evicted without the precondition of its UID", eviction.Name))
		case wanted[eviction.Name] != uid && l.drained == 1:
			found = append(found, fmt.Sprintf("pod %s with UID %s isn't one that had to go", eviction.Name, uid))
		case done.Has(uid):
			found = append(found, fmt.Sprintf("pod %s was evicted twice", eviction.Name))
		}
		done.Insert(uid)
	}
	return found
}
