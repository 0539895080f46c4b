package live

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// printer writes a line for each change.
type printer struct {
	history *history
	before  map[string]entry // by id
	started bool
}

// entry is what was last written about an item.
type entry struct {
	cluster, kind, name, text string

	evacuating bool
}

// title names the item, and its Cluster if there are several.
func (e entry) title() string { return e.cluster + e.kind + " " + e.name + ": " }

// writeLines writes a line for each change until the context is done.
func writeLines(ctx context.Context, source Source, w io.Writer) error {
	p := &printer{history: newHistory()}
	for u := range updates(ctx, source, lineInterval) {
		if err := p.print(w, u); err != nil {
			return errors.Wrap(err, "writing a change")
		}
	}
	return ErrInterrupted
}

// print writes what has changed since the last status.
func (p *printer) print(w io.Writer, u update) error {
	p.history.observe(u.status, u.time)
	items := tree(u.status, p.history, u.time)
	sorted(items, byName)
	c := changes{before: p.before, after: map[string]entry{}}
	for _, gap := range u.status.Gaps {
		c.add(gap, entry{kind: "Not", name: "read", text: terminal.Clean(gap, maxText)})
	}
	c.walk(items, "", len(u.status.Clusters) > 1)
	c.removed()
	if len(c.lines) == 0 && !p.started && u.complete {
		c.lines = []string{"There are no drains."}
	}
	p.before, p.started = c.after, p.started || len(c.lines) > 0
	for _, line := range c.lines {
		if _, err := fmt.Fprintf(w, "%s  %s\n", u.time.Format(time.TimeOnly), line); err != nil {
			return err
		}
	}
	return nil
}

// changes collects the lines of one update.
type changes struct {
	before, after map[string]entry
	lines         []string
}

// add adds a line if the text of an item has changed.
func (c *changes) add(id string, e entry) {
	c.after[id] = e
	if before, known := c.before[id]; e.text != "" && (!known || before.text != e.text) {
		c.lines = append(c.lines, e.title()+e.text)
	}
}

// walk adds the lines of Machines, NodeMaintenances and Pods.
func (c *changes) walk(items []*item, cluster string, several bool) {
	for _, i := range items {
		e := entry{cluster: cluster, kind: i.kind, name: i.name, text: i.state}
		switch i.kind {
		case kindCluster:
			if several {
				cluster = i.title() + ": "
			}
		case kindMachine:
			if len(i.children) == 0 {
				e.text = i.text()
			}
			c.add(i.id, e)
		case kindMaintenance:
			c.add(i.id, e)
			c.pods(i.children, cluster)
			c.outcomes(i.children, i.title(), cluster)
			continue
		case kindEnded:
			c.outcomes(i.children, "", cluster)
			continue
		}
		c.walk(i.children, cluster, several)
	}
}

// pods adds a line for all Pods that have changed to the same text.
func (c *changes) pods(items []*item, cluster string) {
	var texts []string
	names := map[string][]string{}
	for _, pod := range items {
		if pod.kind != kindPod {
			continue
		}
		text := cmp.Or(pod.waits, "Evacuation requested")
		evacuating := pod.evacuating || c.before[pod.id].evacuating // a NodeMaintenance may list the Pod for longer
		c.after[pod.id] = entry{cluster, kindPod, pod.name, text, evacuating}
		if c.before[pod.id].text != text {
			if names[text] == nil {
				texts = append(texts, text)
			}
			names[text] = append(names[text], pod.name)
		}
	}
	for _, text := range texts {
		c.lines = append(c.lines, cluster+report.PodNames(names[text])+": "+text)
	}
}

// outcomes adds lines for what became of the evicted Pods of drains, once that was read. drain names the drain; if it is empty, each item
// does.
func (c *changes) outcomes(items []*item, drain, cluster string) {
	for _, i := range items {
		if i.outcome == nil || i.outcome.ReadTime == nil {
			continue
		}
		e := entry{cluster: cluster, kind: "After the drain of", name: cmp.Or(drain, i.name), text: outcome.Summary(i.outcome.Pods)}
		if i.outcome.Message != "" {
			e.text += ". " + terminal.Clean(i.outcome.Message, maxText)
		}
		c.add(i.id, e)
		for _, application := range i.children {
			of := e
			of.name, of.text = e.name+": "+application.name, application.waits
			c.add(application.id, of)
		}
	}
}

// removed adds the lines of items that are gone.
func (c *changes) removed() {
	pods := map[string][]string{} // by Cluster
	for _, id := range slices.Sorted(maps.Keys(c.before)) {
		e := c.before[id]
		switch _, present := c.after[id]; {
		case present:
		case e.kind == kindPod && !e.evacuating: // it may be blocked still: a NodeMaintenance lists only some
		case e.kind == kindPod:
			pods[e.cluster] = append(pods[e.cluster], e.name)
		case e.kind == kindMaintenance:
			c.lines = append(c.lines, e.title()+reasonDeleted)
		case e.kind == kindMachine && e.text != reasonDeleted:
			c.lines = append(c.lines, e.title()+"No longer maintained")
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(pods)) {
		c.lines = append(c.lines, cluster+report.PodNames(pods[cluster])+": Evacuation ended")
	}
}
