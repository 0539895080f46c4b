package chaos

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Reconciliations are how often each controller of the managers has reconciled until a time.
type Reconciliations struct {
	At     time.Time
	Counts map[string]float64
}

const (
	// busyPeriod is the period in which reconciliations are counted.
	busyPeriod = 10 * time.Second
	// busiest is how often a controller reconciles at most in a busyPeriod, with all objects and all events of a run.
	busiest = 1000
	// mostRepeated is how often the manager makes the same request in a minute at most.
	mostRepeated = 200
)

// reconciledForReasons checks that no controller reconciles again and again (R65), all managers together.
func reconciledForReasons(h *History) []string {
	var found []string
	for i, after := range h.Reconciliations {
		if i == 0 {
			continue
		}
		before := h.Reconciliations[i-1]
		for _, controller := range slices.Sorted(maps.Keys(after.Counts)) {
			if count := after.Counts[controller] - before.Counts[controller]; count > busiest {
				found = append(found, fmt.Sprintf("controller %s has reconciled %.0f times from %s to %s", controller, count, before.At.Format("15:04:05"),
					after.At.Format("15:04:05")))
			}
		}
	}
	return found
}

// requestedForReasons checks that no request is repeated again and again, whether it is answered or not, also if a leader and the one
// before replace each other's status (R91). Events are not counted.
func requestedForReasons(h *History) []string {
	var found []string
	for _, side := range []*Side{&h.Workload, &h.Management} {
		counts := map[repeated]int{}
		for _, request := range side.byManager() {
			if request.Verb != "watch" && request.Resource != "events" && request.Resource != "leases" {
				counts[repeated{request.Requested.Truncate(time.Minute), request.Verb, request.URI, request.Name}]++
			}
		}
		for request, count := range counts {
			if count > mostRepeated {
				found = append(found, fmt.Sprintf("in the minute from %s, %d requests: %s %s (%s)", request.minute.Format("15:04:05"), count,
					request.verb, request.uri, request.name))
			}
		}
	}
	slices.Sort(found)
	return found
}

// repeated identifies the same requests in a minute.
type repeated struct {
	minute          time.Time
	verb, uri, name string // the name of an object that is created is not in the URI
}
