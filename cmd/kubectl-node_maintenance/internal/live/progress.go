package live

import (
	"cmp"
	"slices"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

const (
	// keepDeleted is how long a deleted Machine is shown.
	keepDeleted = time.Minute
	// leastDone is the number of Pods that must have terminated before an estimate is made.
	leastDone = 3
	// reasonDeleted is the reason of a Machine that does not exist any more.
	reasonDeleted = "Deleted"
)

// progress counts Pods that must be drained. The zero value means that nothing is known.
type progress struct {
	done, total int32
	// left is an estimate of the time until all are done, or zero.
	left time.Duration
}

// course is what earlier statuses say about the progress of a drain.
type course struct {
	done, remaining int32
	start           time.Time
	lastDone        time.Time // zero until a Pod was observed to terminate
}

// history is what is known from earlier statuses.
type history struct {
	drains   map[string]*course // by cluster and NodeMaintenance
	machines map[string]*machineCourse
}

// machineCourse is a Machine that was being deleted when it was last observed.
type machineCourse struct {
	cluster, kind, group string
	status               report.MachineStatus
	gone                 time.Time // zero while it exists
}

func newHistory() *history {
	return &history{drains: map[string]*course{}, machines: map[string]*machineCourse{}}
}

// observe records a status, and adds to it the Machines that were deleted recently. It must see each status once.
func (h *history) observe(s *report.Status, now time.Time) {
	seen := map[string]bool{}
	for i := range s.Maintenances {
		h.record("", &s.Maintenances[i], seen, now)
	}
	for _, c := range s.Clusters {
		for _, g := range c.Groups {
			for i := range g.Drains {
				m := &g.Drains[i]
				for j := range m.Maintenances {
					h.record(c.Name, &m.Maintenances[j], seen, now)
				}
				if m.Deleted != "" {
					h.machines[m.Machine] = &machineCourse{cluster: c.Name, kind: g.Kind, group: g.Name, status: *m}
					seen[m.Machine] = true
				}
			}
		}
	}
	for id := range h.drains {
		if !seen[id] {
			delete(h.drains, id)
		}
	}
	for name, m := range h.machines {
		switch {
		case seen[name]:
		case m.gone.IsZero():
			m.gone = now
			m.status.Reason, m.status.Message, m.status.Maintenances = reasonDeleted, "", nil
			m.status.Since = now.UTC().Format(time.RFC3339)
		case now.Sub(m.gone) > keepDeleted:
			delete(h.machines, name)
		}
	}
	h.addDeleted(s)
}

// record follows the drain of a NodeMaintenance. Pods that are created later count as well.
func (h *history) record(cluster string, m *report.MaintenanceStatus, seen map[string]bool, now time.Time) {
	id := cluster + " " + m.Name
	seen[id] = true
	if m.Nodes == 0 || m.Stage != string(v1alpha1.StageDrain) {
		return
	}
	c := h.drains[id]
	if c == nil {
		c = &course{done: m.Evacuated}
		h.drains[id] = c
	}
	if c.start.IsZero() { // the status follows the spec: at first it has no start of the stage
		c.start = parse(m.Since)
	}
	if m.Evacuated > c.done {
		c.lastDone = now
	}
	c.done, c.remaining = m.Evacuated, m.Pending+m.Evacuating
}

func (h *history) addDeleted(s *report.Status) {
	for _, m := range h.machines {
		if m.gone.IsZero() {
			continue
		}
		c := find(&s.Clusters, func(c *report.ClusterStatus) bool { return c.Name == m.cluster }, report.ClusterStatus{Name: m.cluster})
		g := find(&c.Groups, func(g *report.GroupStatus) bool { return g.Kind == m.kind && g.Name == m.group }, report.GroupStatus{Kind: m.kind, Name: m.group})
		g.Drains = append(g.Drains, m.status)
	}
	for i := range s.Clusters {
		for j := range s.Clusters[i].Groups {
			slices.SortStableFunc(s.Clusters[i].Groups[j].Drains, func(a, b report.MachineStatus) int { return cmp.Compare(a.Machine, b.Machine) })
		}
	}
}

// find returns the element of a list, which is added if it is missing.
func find[E any](list *[]E, is func(*E) bool, missing E) *E {
	for i := range *list {
		if is(&(*list)[i]) {
			return &(*list)[i]
		}
	}
	*list = append(*list, missing)
	return &(*list)[len(*list)-1]
}

// progressOf returns the progress of a NodeMaintenance.
func (h *history) progressOf(cluster string, m *report.MaintenanceStatus, now time.Time) progress {
	c := h.drains[cluster+" "+m.Name]
	if c == nil {
		return progress{}
	}
	p := progress{done: c.done, total: c.done + c.remaining}
	waitsForMore := slices.ContainsFunc(m.Blocked, func(b report.BlockedPod) bool { return b.Reason == "" })
	if !waitsForMore {
		p.left = c.estimate(now)
	}
	return p
}

// estimate returns the remaining time at the mean rate so far. It returns zero until the start is known and some Pods have terminated, at
// least one of them while the view is open, and while no Pod terminates: then the rate says nothing about the remaining Pods.
func (c *course) estimate(now time.Time) time.Duration {
	if c.done < leastDone || c.remaining == 0 || c.lastDone.IsZero() || c.start.IsZero() {
		return 0
	}
	mean := c.lastDone.Sub(c.start) / time.Duration(c.done)
	if now.Sub(c.lastDone) > 3*mean {
		return 0
	}
	return max(mean*time.Duration(c.remaining), time.Second)
}
