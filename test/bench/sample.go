package main

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// sample is the measurement of one run of one candidate.
type sample struct {
	Candidate string   `json:"candidate"`
	Nodes     []string `json:"nodes"`
	Pods      int      `json:"pods"`
	Seconds   float64  `json:"seconds"`
	// Evictions is the number of calls of the eviction API, Refused the number of those that failed.
	Evictions int `json:"evictions"`
	Refused   int `json:"refused"`
	// EvictedPerPod is how often each Pod, or its replacement, was evicted: 1 if none lands on a Node that is drained later.
	EvictedPerPod float64 `json:"evicted_per_pod"`
	// Answers counts the evictions by the HTTP status of their responses.
	Answers map[int]int `json:"answers"`
	// Writes to the workload cluster by verb and resource, including evictions, without events (the API objects).
	Writes       map[string]int `json:"writes"`
	WritesPerPod float64        `json:"writes_per_pod"`
	// AllWritesPerPod are the writes to the workload cluster by all users, without events and leases: they include those of the
	// termination of the Pods and of their replacements.
	AllWritesPerPod float64 `json:"all_writes_per_pod"`
	// CPUPerPod is the CPU time of the workload cluster's API server and etcd, in milliseconds, until the clean-up after the run.
	CPUPerPod float64 `json:"cpu_milliseconds_per_pod"`
	// CallsPerPod includes reads and watches.
	CallsPerPod float64   `json:"calls_per_pod"`
	Breakdown   breakdown `json:"breakdown"`
	Steps       []stepAt  `json:"steps,omitempty"`
	// Violations: see violations.
	Violations []string `json:"violations,omitempty"`
	// LoadAverage of the machine when the run started.
	LoadAverage string `json:"load_average,omitempty"`
}

func (s sample) evictionsPerPod() float64 { return float64(s.Evictions) / float64(max(s.Pods, 1)) }

// breakdown divides the time of a run, from the times in the audit log and those of the budget's changes.
type breakdown struct {
	// Start: from the start to the first eviction.
	Start float64 `json:"start_seconds"`
	// Rounds is how often a disruption became allowed while no eviction was in flight; RoundMedian and RoundMax are the time until
	// the next eviction; Idle is the total time in which disruptions were allowed and unused, from the first eviction to the last:
	// the mean of all budgets.
	Rounds      int     `json:"rounds"`
	RoundMedian float64 `json:"round_median_seconds"`
	RoundMax    float64 `json:"round_max_seconds"`
	Idle        float64 `json:"idle_seconds"`
	// Calls is the total time of eviction calls.
	Calls float64 `json:"calls_seconds"`
	// End: from the end of the last Pod to the end of the run.
	End float64 `json:"end_seconds"`
	// Own is the part that only the candidate is responsible for: start, idle and end. The rest is the time of eviction calls, and
	// of waiting for budgets.
	Own float64 `json:"own_seconds"`
}

// step is a point in time of a run, or the zero time if it was not reached.
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
	all := events.Writes().Where(func(e controlplane.Event) bool { return e.Resource != "events" && e.Resource != "leases" })
	if len(t.pods) > 0 {
		s.AllWritesPerPod = float64(len(all)) / float64(len(t.pods))
		s.WritesPerPod = float64(writes) / float64(len(t.pods))
		s.CallsPerPod = float64(len(requests)) / float64(len(t.pods))
	}
	gone := lastGone(t, events)
	s.Breakdown = newBreakdown(taken, evictions, history, gone)
	if c.steps != nil {
		// Ignore steps after the end of the span.
		steps := c.steps(requests.Where(func(e controlplane.Event) bool { return !e.Requested.After(taken.ended) }))
		for _, each := range append(steps, step{"last Pod deleted", gone}, step{"end", taken.ended}) {
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
	for _, eviction := range evictions {
		b.Calls += eviction.Answered.Sub(eviction.Requested).Seconds()
	}
	begin := slices.MinFunc(evictions, byRequest).Requested
	// A watch may show that a Pod is deleted before the kubelet has its response.
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

// lastGone returns when the last Pod of the target was deleted.
func lastGone(t target, events controlplane.Events) time.Time {
	names := sets.New[string]()
	for i := range t.pods {
		names.Insert(t.pods[i].Name)
	}
	var gone time.Time
	for _, event := range events.Verb("delete").Resource("pods").InNamespace(appNamespace).Succeeded() {
		// The first deletion by the kubelet removes the Pod. A second one fails.
		if names.Has(event.Name) && event.Answered.After(gone) {
			gone = event.Answered
		}
	}
	return gone
}

// violations returns what is wrong with evictions by a candidate that is expected to evict each Pod of the target once and no other Pod,
// not even a replacement of the same name. With several Nodes, a Pod may land on one that is not cordoned yet, and be evicted
// again.
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
			found = append(found, fmt.Sprintf("Pod %s was evicted without the precondition of its UID", eviction.Name))
		case wanted[eviction.Name] != uid && l.drained == 1:
			found = append(found, fmt.Sprintf("Pod %s with UID %s did not have to be evicted", eviction.Name, uid))
		case done.Has(uid):
			found = append(found, fmt.Sprintf("Pod %s was evicted twice", eviction.Name))
		}
		done.Insert(uid)
	}
	return found
}
