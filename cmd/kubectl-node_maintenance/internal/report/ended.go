package report

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// IsRecent reports whether the text names the drain.
func (d *EndedDrain) IsRecent(now time.Time) bool { return now.Sub(d.Outcome.EndTime.Time) < endedFor }

// AddEnded adds drains that have ended to their Clusters, which may have no Machine any more. The NodeMaintenance of a Machine exists for
// some time after the end of its drain: an outcome that it has of this drain, or of an earlier one of the Machine, is left out.
func (s *Status) AddEnded(drains []outcome.Ended) {
	machines := s.Machines()
	for i := range drains {
		e := &drains[i]
		if m := machines[e.MachineName()]; m != nil {
			m.leaveOutUntil(e.EndTime)
		}
		at, found := slices.BinarySearchFunc(s.Clusters, e.ClusterName(), func(c ClusterStatus, name string) int { return cmp.Compare(c.Name, name) })
		if !found {
			s.Clusters = slices.Insert(s.Clusters, at, ClusterStatus{Name: e.ClusterName()})
		}
		s.Clusters[at].Ended = append(s.Clusters[at].Ended, EndedDrain{e.MachineName(), e.Node, e.DrainOutcome})
	}
}

// Machines returns the Machines by "namespace/name".
func (s *Status) Machines() map[string]*MachineStatus {
	all := map[string]*MachineStatus{}
	for i := range s.Clusters {
		for j := range s.Clusters[i].Groups {
			drains := s.Clusters[i].Groups[j].Drains
			for k := range drains {
				all[drains[k].Machine] = &drains[k]
			}
		}
	}
	return all
}

// leaveOutUntil removes the outcomes of drains that ended at a time or before.
func (m *MachineStatus) leaveOutUntil(end metav1.Time) {
	for i := range m.Maintenances {
		if of := m.Maintenances[i].Outcome; of != nil && !end.Before(&of.EndTime) {
			m.Maintenances[i].Outcome = nil
		}
	}
}

// ended writes the drains of a Cluster that have ended. If that would be none, and the Cluster has no Machine, it says how many are older.
func (t text) ended(c *ClusterStatus, now time.Time) {
	isShown := func(d EndedDrain) bool { return t.wide || d.IsRecent(now) }
	if !slices.ContainsFunc(c.Ended, isShown) {
		if len(c.Groups) == 0 {
			t.line("  %s ended more than a day ago: -o wide shows what became of the evicted Pods", words.Count(len(c.Ended), "drain"))
		}
		return
	}
	t.line("  Evicted Pods of drains that have ended")
	for i := range c.Ended {
		d := &c.Ended[i]
		if !isShown(*d) {
			continue
		}
		where := words.Cut("Machine "+d.Machine, maxPodName)
		if d.Node != "" && t.wide {
			where += words.Cut(", Node "+d.Node, maxPodName)
		}
		t.part("    %s, %s: ", where, EndedAgo(&d.Outcome, now))
		t.outcome("      ", &d.Outcome)
	}
}

// OutcomeText says what became of evicted Pods, and when that was read.
func OutcomeText(of *v1alpha1.DrainOutcome) string {
	if of.ReadTime == nil {
		return outcome.Summary(of.Pods) + "; not read yet"
	}
	return outcome.Summary(of.Pods) + "; read " + duration.HumanDuration(max(of.ReadTime.Sub(of.EndTime.Time), 0)) + " after the drain"
}

// EndedAgo says how long ago the drain of an outcome ended.
func EndedAgo(of *v1alpha1.DrainOutcome, now time.Time) string {
	return "ended " + duration.HumanDuration(max(now.Sub(of.EndTime.Time), 0)) + " ago"
}

// ApplicationText says what became of the evicted Pods of a controller, and why.
func ApplicationText(of *v1alpha1.EvictedApplication) string {
	if of.Why == "" {
		return outcome.Summary(of.Pods)
	}
	return outcome.Summary(of.Pods) + ". " + of.Why
}

// outcome continues a line with what became of evicted Pods. Below it, there is a line for each controller with Pods that are not replaced
// by ready ones, of at most maxGroups controllers unless the output is wide.
func (t text) outcome(indent string, of *v1alpha1.DrainOutcome) {
	t.line("%s", OutcomeText(of))
	if of.Message != "" {
		t.line(indent+"%s", of.Message)
	}
	for i := range of.Applications {
		if i == maxGroups && !t.wide {
			t.line(indent+"%s", words.Count(len(of.Applications)-i, "more controller"))
			break
		}
		t.line(indent+"%s: %s", words.Cut(of.Applications[i].Controller, maxPodName), ApplicationText(&of.Applications[i]))
	}
}
