package live

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// printer writes a line for each change.
type printer struct {
	history *history
	before  map[string]string // texts by id
	started bool
}

// print writes what has changed since the last status.
func (p *printer) print(w io.Writer, u update) error {
	p.history.observe(u.status, u.time)
	items := tree(u.status, p.history, u.time)
	sorted(items, byName)
	c := changes{before: p.before, after: map[string]string{}}
	for _, gap := range u.status.Gaps {
		c.add("not read "+gap, "Not read: "+gap, "")
	}
	c.walk(items, "", len(u.status.Clusters) > 1)
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

// changes collects the lines of one update.
type changes struct {
	before, after map[string]string
	lines         []string
}

// add adds a line if the text of an item has changed.
func (c *changes) add(id, title, text string) {
	c.after[id] = text
	if before, known := c.before[id]; !known || before != text {
		c.lines = append(c.lines, title+text)
	}
}

// walk adds the lines of Machines, NodeMaintenances and Pods.
func (c *changes) walk(items []*item, cluster string, several bool) {
	for _, i := range items {
		switch i.kind {
		case kindCluster:
			if several {
				cluster = i.title() + ": "
			}
		case kindMachine:
			text := i.state
			if len(i.children) == 0 {
				text = i.text()
			}
			c.add(i.id, cluster+i.title()+": ", text)
		case kindMaintenance:
			c.add(i.id, cluster+i.title()+": ", i.state)
			c.pods(i, cluster)
			continue
		}
		c.walk(i.children, cluster, several)
	}
}

// pods adds a line for all Pods of a NodeMaintenance that have changed to the same text.
func (c *changes) pods(maintenance *item, cluster string) {
	var texts []string
	names := map[string][]string{}
	note := func(text, name string) {
		if names[text] == nil {
			texts = append(texts, text)
		}
		names[text] = append(names[text], name)
	}
	for _, pod := range maintenance.children {
		text := pod.waits
		if text == "" {
			text = "Evacuation requested"
		}
		c.after[pod.id] = text
		if c.before[pod.id] != text {
			note(text, pod.name)
		}
	}
	prefix := maintenance.id + ", " + kindPod + " "
	for _, id := range slices.Sorted(maps.Keys(c.before)) {
		if name, is := strings.CutPrefix(id, prefix); is && c.after[id] == "" {
			note("Evacuation ended", name)
		}
	}
	for _, text := range texts {
		c.lines = append(c.lines, cluster+report.PodNames(names[text])+": "+text)
	}
}
