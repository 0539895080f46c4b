package history

import (
	"slices"
	"time"
)

// maxLongest is the number of longest waits in a Summary.
const maxLongest = 3

// Summary is a drain in a few numbers.
type Summary struct {
	// Since is the first observation. If the drain had begun before, the numbers are incomplete.
	Since time.Time
	// Pods is the number of Pods of which an evacuation has ended, Evictions the number of those that this manager evicted, and Refusals the
	// number of evictions that the API server refused.
	Pods, Evictions, Refusals int
	// Longest are the longest waits, starting with the longest.
	Longest []PodWait
}

// PodWait is a wait of a Pod.
type PodWait struct {
	Pod    string // "namespace/name"
	Reason string
	Object string
	For    time.Duration
}

// add adds an evacuation that has ended.
func (s *Summary) add(e *Evacuation) {
	if e.Attempt == 0 {
		s.Pods++
	}
	s.Refusals += int(e.Refusals)
	if e.Evicted {
		s.Evictions++
	}
	for _, wait := range e.Waits {
		s.Longest = append(s.Longest, PodWait{Pod: e.Namespace + "/" + e.Name, Reason: wait.Reason, Object: wait.Object, For: wait.End.Sub(wait.Start)})
	}
	slices.SortStableFunc(s.Longest, func(a, b PodWait) int { return int((b.For - a.For) / time.Millisecond) })
	s.Longest = slices.Clip(s.Longest[:min(len(s.Longest), maxLongest)])
}
