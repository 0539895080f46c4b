package live

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	words "github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// The longest texts of an item.
const (
	maxName = 253
	maxText = 700
)

// The kinds of items.
const (
	kindCluster     = "Cluster"
	kindMachine     = "Machine"
	kindMaintenance = "NodeMaintenance"
	kindPod         = "Pod"
	// kindEnded is the item above the drains of a Cluster that have ended. By name, it is sorted behind the MachineDeployments.
	kindEnded = "Pods of ended drains"
	// nameOutcome is the name of the item below a NodeMaintenance that has an outcome.
	nameOutcome = "After the drain"
)

// Target is what the command why explains about an item.
type Target struct {
	Kind, Namespace, Name string
	// Cluster is the Cluster of a Pod, as "namespace/name", with a context of a management cluster.
	Cluster string
}

// item is a line of the tree, with the lines below it. Its texts are safe for a terminal.
type item struct {
	id         string
	kind, name string
	// state is the state of the item, waits what it waits for the longest, since waiting.
	state, waits string
	waiting      time.Time
	// elapsed is zero if it is unknown.
	elapsed  time.Duration
	progress progress
	// evacuating means that the item is a Pod that has an Evacuation.
	evacuating bool
	// complete means that nothing is left to do.
	complete bool
	// outcome is what became of the evicted Pods of a drain, if the item is about that.
	outcome  *v1alpha1.DrainOutcome
	target   Target
	children []*item
}

func newItem(parent *item, kind, name string) *item {
	i := &item{kind: kind, name: terminal.Clean(name, maxName)}
	i.id = i.title()
	if parent != nil {
		i.id = parent.id + ", " + i.id
		parent.children = append(parent.children, i)
	}
	return i
}

func (i *item) title() string { return strings.TrimSpace(i.kind + " " + i.name) }

// text returns the state and what the item waits for.
func (i *item) text() string {
	if i.state == "" || i.waits == "" {
		return i.state + i.waits
	}
	return i.state + ": " + i.waits
}

// tree returns the items of a status that the history has observed.
func tree(s *report.Status, h *history, now time.Time) []*item {
	root := &item{}
	for i := range s.Clusters {
		if c := &s.Clusters[i]; len(c.Groups) > 0 || slices.ContainsFunc(c.Ended, func(e report.EndedDrain) bool { return e.IsRecent(now) }) {
			clusterItem(root, c, h, now)
		}
	}
	for i := range s.Maintenances {
		maintenanceItem(root, "", &s.Maintenances[i], h, now)
	}
	return root.children
}

func clusterItem(parent *item, c *report.ClusterStatus, h *history, now time.Time) {
	cluster := newItem(parent, kindCluster, c.Name)
	drains := 0
	for i := range c.Groups {
		g := &c.Groups[i]
		group := newItem(cluster, g.Kind, g.Name)
		existing := 0
		for j := range g.Drains {
			machineItem(group, c.Name, &g.Drains[j], h, now)
			if g.Drains[j].Reason != reasonDeleted {
				existing++
			}
		}
		drains += existing
		group.sumUp()
		group.state = fmt.Sprintf("%d of %d maintained", existing, g.Machines)
	}
	cluster.sumUp()
	cluster.state = fmt.Sprintf("%d of %d maintained", drains, c.Machines)
	endedItem(cluster, c.Ended, now)
}

// endedItem adds the drains that have ended. Of Machines with the same name, it has the one that was drained last.
func endedItem(cluster *item, drains []report.EndedDrain, now time.Time) {
	ended, settled, known := &item{}, 0, map[string]bool{}
	for i := range drains {
		d := &drains[i]
		if !d.IsRecent(now) || known[d.Machine] {
			continue
		}
		known[d.Machine] = true
		if len(known) == 1 {
			ended = newItem(cluster, kindEnded, "")
		}
		_, name, _ := strings.Cut(d.Machine, "/")
		if outcomeItem(ended, kindMachine+" "+name, report.EndedAgo(&d.Outcome, now), &d.Outcome).complete {
			settled++
		}
	}
	ended.state, ended.complete = words.Count(len(known), "drain"), settled == len(known)
	if !ended.complete {
		ended.waits = fmt.Sprintf("%d with Pods not known to be replaced by ready ones", len(known)-settled)
	}
}

// outcomeItem adds what became of the evicted Pods of a drain, and below it the controllers with Pods that are not replaced by ready ones.
func outcomeItem(parent *item, name, state string, of *v1alpha1.DrainOutcome) *item {
	i := newItem(parent, "", name)
	i.outcome, i.complete = of, outcome.Settled(of.Pods)
	text := report.OutcomeText(of)
	if of.Message != "" {
		text += ". " + of.Message
	}
	if i.state, i.waits = state, terminal.Clean(text, maxText); i.complete {
		i.state, i.waits = i.text(), ""
	}
	for j := range of.Applications {
		a := &of.Applications[j]
		application := newItem(nil, "", a.Controller)
		if application.id = i.id + ", " + application.id; !slices.ContainsFunc(i.children, func(c *item) bool { return c.id == application.id }) {
			application.waits = terminal.Clean(report.ApplicationText(a), maxText)
			i.children = append(i.children, application)
		}
	}
	return i
}

func machineItem(parent *item, cluster string, m *report.MachineStatus, h *history, now time.Time) {
	namespace, name, _ := strings.Cut(m.Machine, "/")
	machine := newItem(parent, kindMachine, name)
	machine.target = Target{Kind: "machine", Namespace: namespace, Name: name}
	for i := range m.Maintenances {
		maintenanceItem(machine, cluster, &m.Maintenances[i], h, now)
	}
	machine.sumUp()
	machine.state = terminal.Clean(m.Reason, maxName)
	machine.complete = m.Reason == reasonDeleted
	machine.elapsed = elapsed(cmp.Or(m.Deleted, m.Since), now)
	switch {
	case machine.complete:
		machine.elapsed = elapsed(m.Deleted, parse(m.Since))
		machine.target = Target{}
	case m.Reason == "" && m.Deleted != "":
		machine.state = "Deleting"
	case machine.waits == "" && len(m.Maintenances) == 0:
		first, _, _ := strings.Cut(m.Message, "\n")
		machine.waits, machine.waiting = terminal.Clean(first, maxText), parse(m.Since)
	}
}

func maintenanceItem(parent *item, cluster string, m *report.MaintenanceStatus, h *history, now time.Time) {
	maintenance := newItem(parent, kindMaintenance, m.Name)
	maintenance.target = parent.target
	for _, p := range m.Pods {
		pod := newItem(maintenance, kindPod, p.Pod)
		pod.evacuating = p.HasEvacuation
		pod.waits, pod.waiting, pod.elapsed = terminal.Clean(p.Why, maxText), parse(p.Since), elapsed(p.Since, now)
		if expected := parse(p.Expected); expected.After(now) {
			pod.progress.left = expected.Sub(now)
		}
		namespace, name, _ := strings.Cut(p.Pod, "/")
		pod.target = Target{Kind: "pod", Namespace: namespace, Name: name, Cluster: cluster}
	}
	maintenance.state = "stage " + terminal.Clean(m.Stage, maxName)
	if m.Stage == string(v1alpha1.StageDrain) {
		maintenance.state = fmt.Sprintf("%d evacuating, %d pending, %d skipped", m.Evacuating, m.Pending, m.Skipped)
		if m.Nodes > 1 {
			maintenance.state = fmt.Sprintf("%d of %d Nodes drained, ", m.DrainedNodes, m.Nodes) + maintenance.state
		}
	}
	maintenance.waits = terminal.Clean(m.Blocking, maxText)
	if len(m.Blocked) > 0 {
		maintenance.waiting = parse(m.Blocked[0].Since)
	}
	maintenance.progress = h.progressOf(cluster, m, now)
	maintenance.complete = m.Nodes > 0 && m.DrainedNodes == m.Nodes
	maintenance.elapsed = elapsed(m.Since, now)
	if m.Outcome != nil {
		outcomeItem(maintenance, nameOutcome, "", m.Outcome).target = parent.target
	}
}

// sumUp derives the progress, the elapsed time and what is waited for from the children.
func (i *item) sumUp() {
	i.complete = len(i.children) > 0
	for _, child := range i.children {
		i.progress.done += child.progress.done
		i.progress.total += child.progress.total
		i.progress.left = max(i.progress.left, child.progress.left)
		i.elapsed = max(i.elapsed, child.elapsed)
		i.complete = i.complete && child.complete
		if child.waits != "" && (i.waits == "" || child.waiting.Before(i.waiting)) {
			i.waits, i.waiting = child.waits, child.waiting
		}
	}
	for _, child := range i.children { // no estimate for the whole without one for each part that is not complete
		if child.elapsed > 0 && !child.complete && child.progress.left == 0 {
			i.progress.left = 0
		}
	}
}

func parse(stamp string) time.Time {
	t, _ := time.Parse(time.RFC3339, stamp)
	return t
}

func elapsed(since string, now time.Time) time.Duration {
	start := parse(since)
	if start.IsZero() {
		return 0
	}
	return max(now.Sub(start), 0)
}

// order is how items with the same parent are sorted.
type order int

const (
	byName order = iota
	byElapsed
	byPodsLeft
	orders // their number
)

func (o order) String() string { return [orders]string{"name", "time", "Pods left"}[o] }

// sorted sorts items and all below them.
func sorted(items []*item, by order) {
	slices.SortStableFunc(items, func(a, b *item) int {
		first := 0
		switch by {
		case byElapsed:
			first = cmp.Compare(b.elapsed, a.elapsed)
		case byPodsLeft:
			first = cmp.Compare(b.progress.total-b.progress.done, a.progress.total-a.progress.done)
		case byName, orders: // below
		}
		return cmp.Or(first, cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	for _, i := range items {
		sorted(i.children, by)
	}
}

// filtered returns the items whose name or text contains a text, with what is above and below them.
func filtered(items []*item, text string) []*item {
	var found []*item
	for _, i := range items {
		if strings.Contains(strings.ToLower(i.title()+" "+i.text()), strings.ToLower(text)) {
			found = append(found, i)
		} else if children := filtered(i.children, text); len(children) > 0 {
			parent := *i
			parent.children = children
			found = append(found, &parent)
		}
	}
	return found
}

// row is an item at its depth in the tree.
type row struct {
	*item

	depth  int
	closed bool
}

// rows returns the items from top to bottom, without those below a closed item.
func rows(items []*item, closed map[string]bool) []row {
	var all []row
	var add func([]*item, int)
	add = func(items []*item, depth int) {
		for _, i := range items {
			all = append(all, row{i, depth, closed[i.id] && len(i.children) > 0})
			if !closed[i.id] {
				add(i.children, depth+1)
			}
		}
	}
	add(items, 0)
	return all
}
