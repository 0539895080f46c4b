package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

const (
	// maxApplications is the maximum number of applications in the chart.
	maxApplications = 50
	// applicationHeight is the height of the chart of an application, in its own units.
	applicationHeight = 40
)

// application is the chart of an application, as paths in its own units.
type application struct {
	Name, Detail string
	Drains       string // the times in which a Node of the Cluster was drained
	Hurt         string // the times in which no replica was ready, or fewer than the budget requires
	Required     string // how many healthy Pods the budget requires
	Ready        string // how many replicas were ready
}

// applications adds the charts of the applications, starting with the most affected one.
func (v *view) applications(h *recording.History, axis axis) {
	shown := h.Effects[:min(len(h.Effects), maxApplications)]
	v.MoreEffects = len(h.Effects) - len(shown)
	drains := map[string]string{}
	for i := range shown {
		e := &shown[i]
		if _, known := drains[e.Cluster]; !known {
			drains[e.Cluster] = axis.blocks(drainsOf(h, e.Cluster), 0)
		}
		chart := applicationOf(e, axis)
		chart.Name, chart.Detail, chart.Drains = v.named(e.Cluster, e.Title()), clean(e.Sentence()), drains[e.Cluster]
		v.Applications = append(v.Applications, chart)
	}
}

func applicationOf(e *recording.Effect, axis axis) application {
	most := int32(1)
	for _, level := range slices.Concat(e.Ready, e.Wanted, e.Required) {
		most = max(most, level.Value)
	}
	const margin = 3 // for the line at zero, and at the top
	y := func(value int32) float64 {
		return margin + (1-float64(value)/float64(most))*(applicationHeight-2*margin)
	}
	result := application{Ready: axis.steps(e.Ready, y), Hurt: axis.blocks(e.Hurt, 0)}
	if !e.IsShared {
		result.Required = axis.steps(e.Required, y)
	}
	return result
}

// steps returns the path of a step line. It is interrupted where the number is not known. Of several numbers at one position, it has the
// lowest one.
func (a axis) steps(levels []recording.Level, y func(int32) float64) string {
	var path strings.Builder
	end := ""
	for i := 0; i < len(levels); {
		from, to, least := number(a.at(levels[i].From)), levels[i].To, levels[i].Value
		for i++; i < len(levels) && number(a.at(levels[i].From)) == from; i++ {
			to, least = levels[i].To, min(least, levels[i].Value)
		}
		if from == end {
			path.WriteString("V" + number(y(least)))
		} else {
			path.WriteString("M " + from + " " + number(y(least)))
		}
		end = number(a.at(to))
		path.WriteString("H" + end)
	}
	return path.String()
}

// blocks returns the path of blocks from a height to the bottom of the chart. Blocks that the chart cannot distinguish are one.
func (a axis) blocks(spans []recording.Span, top int) string {
	spans = slices.SortedFunc(slices.Values(spans), func(x, y recording.Span) int { return x.From.Compare(y.From) })
	var path strings.Builder
	for i := 0; i < len(spans); {
		from, to := a.at(spans[i].From), a.at(spans[i].To)
		for i++; i < len(spans) && a.at(spans[i].From) <= to+1; i++ {
			to = max(to, a.at(spans[i].To))
		}
		from = min(from, width-1)
		fmt.Fprintf(&path, "M %s %dV%dH%sV%dZ", number(from), top, applicationHeight, number(max(to, from+1)), top)
	}
	return path.String()
}

// drainsOf returns when Nodes of a Cluster were drained.
func drainsOf(h *recording.History, cluster string) []recording.Span {
	var spans []recording.Span
	for i := range h.Drains {
		if d := &h.Drains[i]; d.Cluster == cluster && !d.Start.IsZero() {
			spans = append(spans, recording.Span{From: d.Start, To: d.Start.Add(d.Took())})
		}
	}
	return spans
}

// recovered returns when all replicas of the applications were ready again after a time, and at most a limit.
func recovered(h *recording.History, after, limit time.Time) time.Time {
	end := after
	for i := range h.Effects {
		e := &h.Effects[i]
		for j, level := range e.Ready {
			if level.To.After(after) && level.Value < e.Wanted[j].Value && level.To.After(end) {
				end = level.To
			}
		}
	}
	if end.After(limit) {
		return limit
	}
	return end
}
