package page

import (
	"fmt"
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	results "github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// maxOutcomes is the maximum number of drains whose outcome is shown.
const maxOutcomes = 100

// outcome is what became of the evicted Pods of a drain.
type outcome struct {
	Class        string // how bad it is: bad, fair or fine
	Name, Detail string
	Controllers  []controller // with Pods that are not replaced by ready ones
	More         int          // controllers that are not recorded
}

// controller is what became of the evicted Pods of a controller.
type controller struct{ Name, Detail string }

// outcomes adds the outcomes of the drains, those with most Pods without a place first.
func (v *view) outcomes(h *recording.History) {
	shown := h.Outcomes[:min(len(h.Outcomes), maxOutcomes)]
	v.MoreOutcomes = len(h.Outcomes) - len(shown)
	for i := range shown {
		o := &shown[i]
		result := outcome{Class: gravity(o.Pods), Name: v.named(o.Cluster, o.Title()), Detail: clean(o.Sentence()), More: o.More}
		if o.Node != "" {
			result.Name += clean(", Node " + o.Node)
		}
		if o.Ended.Before(h.Start) {
			result.Detail += "; the drain had ended before the recording began"
		}
		for j := range o.Controllers {
			of := &o.Controllers[j]
			result.Controllers = append(result.Controllers, controller{terminal.Clean(of.Controller, maxName), clean(of.Sentence())})
		}
		v.Outcomes = append(v.Outcomes, result)
	}
}

// gravity says how bad it is what became of Pods.
func gravity(pods v1alpha1.EvictedPods) string {
	switch {
	case pods.Pending+pods.NotReplaced > 0:
		return "bad"
	case !results.Settled(pods):
		return "fair"
	default:
		return "fine"
	}
}

// writeOutcomes writes a line for each drain, and for each controller with Pods that were not replaced by ready ones.
func (v *view) writeOutcomes(b *strings.Builder) {
	if len(v.Outcomes) > 0 {
		b.WriteString("\n## What became of the evicted Pods\n\n")
	}
	for i, o := range v.Outcomes {
		if i == ticketOutcomes {
			v.MoreOutcomes += len(v.Outcomes) - i
			break
		}
		fmt.Fprintf(b, "- **%s**: %s\n", escape(o.Name), escape(o.Detail))
		for _, of := range o.Controllers {
			fmt.Fprintf(b, "  - **%s**: %s\n", escape(of.Name), escape(of.Detail))
		}
		if o.More > 0 {
			fmt.Fprintf(b, "  - Controllers that are not listed: %d\n", o.More)
		}
	}
	if v.MoreOutcomes > 0 {
		fmt.Fprintf(b, "- More drains that are not listed: %d.\n", v.MoreOutcomes)
	}
}
