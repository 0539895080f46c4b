package report

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	words "github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// endedFor is how long after its end the text names a drain. The wide format has all that the policies keep.
const endedFor = 24 * time.Hour

// EndedDrain is a drain of a deleted Machine that has ended, and what became of the Pods that it evicted.
type EndedDrain struct {
	Machine string                `json:"machine"`
	Node    string                `json:"node,omitempty"`
	Outcome v1alpha1.DrainOutcome `json:"outcome"`
}

// AddEnded adds drains that have ended to their Clusters, which may have no Machine any more.
func (s *Status) AddEnded(drains []outcome.Ended) {
	for i := range drains {
		e := &drains[i]
		at, found := slices.BinarySearchFunc(s.Clusters, e.ClusterName(), func(c ClusterStatus, name string) int { return cmp.Compare(c.Name, name) })
		if !found {
			s.Clusters = slices.Insert(s.Clusters, at, ClusterStatus{Name: e.ClusterName()})
		}
		s.Clusters[at].Ended = append(s.Clusters[at].Ended, EndedDrain{e.MachineName(), e.Node, e.DrainOutcome})
	}
}

// ended writes the drains that have ended.
func (t text) ended(drains []EndedDrain, now time.Time) {
	isRecent := func(d EndedDrain) bool { return t.wide || now.Sub(d.Outcome.EndTime.Time) < endedFor }
	if !slices.ContainsFunc(drains, isRecent) {
		return
	}
	t.line("  Evicted Pods of drains that have ended")
	for i := range drains {
		d := &drains[i]
		if !isRecent(*d) {
			continue
		}
		where := words.Cut("Machine "+d.Machine, maxPodName)
		if d.Node != "" && t.wide {
			where += words.Cut(", Node "+d.Node, maxPodName)
		}
		t.part("    %s, ended %s ago: ", where, duration.HumanDuration(max(now.Sub(d.Outcome.EndTime.Time), 0)))
		t.outcome("      ", &d.Outcome)
	}
}

// outcome continues a line with what became of evicted Pods. Below it, there is a line for each controller with Pods that are not replaced
// by ready ones, of at most maxGroups controllers unless the output is wide.
func (t text) outcome(indent string, of *v1alpha1.DrainOutcome) {
	summary := outcome.Summary(of.Pods) + "; not read yet"
	if of.ReadTime != nil {
		summary = outcome.Summary(of.Pods) + "; read " + duration.HumanDuration(max(of.ReadTime.Sub(of.EndTime.Time), 0)) + " after the drain"
	}
	t.line("%s", summary)
	if of.Message != "" {
		t.line(indent+"%s", of.Message)
	}
	for i, application := range of.Applications {
		if i == maxGroups && !t.wide {
			t.line(indent+"%s", words.Count(len(of.Applications)-i, "more controller"))
			break
		}
		line := words.Cut(application.Controller, maxPodName) + ": " + outcome.Summary(application.Pods)
		if application.Why != "" {
			line += ". " + application.Why
		}
		t.line(indent+"%s", line)
	}
}
