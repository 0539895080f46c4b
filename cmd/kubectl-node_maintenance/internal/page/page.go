// Package page writes the history of drains as one HTML page, or as Markdown for a ticket. It is pure: no network, and no clock.
package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/advice"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// maxWaits is the maximum number of waits in the table, maxPods that of Pods in the chart.
	maxWaits = 1000
	maxPods  = 3000
	// openNodes is the number of Nodes whose Pods are shown at first.
	openNodes = 20

	maxName = 253
	maxText = 700
	// width is that of a chart, in its own units.
	width = 1000
	// ticks is the number of labels of the time axis.
	ticks = 5
)

//go:embed page.html
var source string

var layout = template.Must(template.New("page").Parse(source))

// view is what the template shows. All its texts are clean.
type view struct {
	Title, Period string
	Summary       []string
	Warnings      []string
	Advice        []change
	Legend        []legend
	Ticks         []tick
	Applications  []application
	MoreEffects   int // applications that are not shown
	Outcomes      []outcome
	MoreOutcomes  int // drains whose outcome is not shown
	Drains        []drain
	Hidden        int // Pods that are not in the chart
	Budgets       []budget
	Waits         []wait
	MoreWaits     int

	nodes, pods int  // in the chart
	several     bool // the drains are of several Clusters
}

type change struct{ Name, Text, Fix, Guide string }

type legend struct {
	Class, Name string
}

type tick struct {
	Left  float64 // percent
	Label string
}

type drain struct {
	Title, Detail string
	Summary       []string
	Nodes         []node
}

type node struct {
	Name string
	Open bool
	Pods []pod
}

type pod struct {
	Name, Took, Title string
	Bars              []bar
}

type bar struct {
	Class string
	X, W  string
}

type budget struct {
	Name, Detail, Path string
	Most               int32
	None               []bar // the time in which no disruption is allowed
}

type wait struct {
	Class, Kind, Pod, Node, For, Seconds, Name, Message, Start string
}

// WriteHTML writes a history as an HTML page that needs no other file.
func WriteHTML(w io.Writer, h *recording.History) error {
	return errors.Wrap(layout.Execute(w, viewOf(h)), "writing the page")
}

func clean(text string) string { return terminal.Clean(text, maxText) }

func cleanAll(texts []string) []string {
	all := make([]string, 0, len(texts))
	for _, text := range texts {
		all = append(all, clean(text))
	}
	return all
}

func viewOf(h *recording.History) *view {
	axis := axisOf(h)
	v := &view{
		Title: titleOf(h), Summary: cleanAll(h.Summary()), Ticks: axis.ticks(),
		Period:   h.Start.UTC().Format("2006-01-02 15:04:05") + " to " + h.End.UTC().Format("2006-01-02 15:04:05") + " UTC",
		Warnings: warnings(h), Advice: adviceOf(h), several: recording.AreOfSeveral(h.Drains),
	}
	for i, kind := range history.Kinds {
		v.Legend = append(v.Legend, legend{classOf(i), string(kind)})
	}
	v.applications(h, axis)
	v.outcomes(h)
	for i := range h.Drains {
		v.Drains = append(v.Drains, v.drain(&h.Drains[i], axis))
	}
	for i := range h.Budgets {
		v.Budgets = append(v.Budgets, budgetOf(v.named(h.Budgets[i].Cluster, h.Budgets[i].Name), &h.Budgets[i], axis, h.End))
	}
	v.waits(h)
	return v
}

// titleOf names the clusters of a recording. Traces do not name their context.
func titleOf(h *recording.History) string {
	if h.Context == "" {
		return "Drains"
	}
	return clean("Drains of the " + h.Context)
}

func warnings(h *recording.History) []string {
	var all []string
	if h.Incomplete != "" {
		all = append(all, "Incomplete: "+h.Incomplete+".")
	}
	for _, gap := range h.Gaps {
		all = append(all, "Not read: "+gap)
	}
	return cleanAll(all)
}

// adviceOf says for each cause what could be changed.
func adviceOf(h *recording.History) []change {
	const most = 10
	var all []change
	for _, cause := range recording.Causes(h.Drains) {
		if cause.Blocked < time.Second || len(all) == most {
			break
		}
		a := change{
			Name: clean(cause.Name()),
			Text: fmt.Sprintf("blocked %s in %s for %s", text.Count(cause.Pods, "Pod"), text.Count(cause.Drains, "drain"), recording.Duration(cause.Blocked)),
		}
		if a.Fix, a.Guide = advice.Of(cause.Reason); cause.NeverAllows {
			a.Fix = advice.FixNeverAllows
		}
		all = append(all, a)
	}
	return all
}

func classOf(kind int) string { return "k" + strconv.Itoa(kind) }

func kindClass(reason string) string {
	return classOf(slices.Index(history.Kinds, history.KindOf(reason)))
}

// drain returns a drain with its Pods by Node.
func (v *view) drain(d *recording.Drain, axis axis) drain {
	result := drain{Title: clean(d.Title()), Summary: cleanAll(d.Summary())}
	var details []string
	if d.Cluster != "" {
		details = append(details, "Cluster "+d.Cluster)
	}
	if d.Maintenance != "" && d.Machine != "" {
		details = append(details, "NodeMaintenance "+d.Maintenance)
	}
	result.Detail = clean(strings.Join(details, ", "))
	for i := range d.Pods {
		p := &d.Pods[i]
		if v.pods >= maxPods {
			v.Hidden++
			continue
		}
		name := clean(cmp.Or(p.Node, "unknown"))
		if n := len(result.Nodes); n == 0 || result.Nodes[n-1].Name != name {
			v.nodes++
			result.Nodes = append(result.Nodes, node{Name: name, Open: v.nodes <= openNodes})
		}
		v.pods++
		last := &result.Nodes[len(result.Nodes)-1]
		last.Pods = append(last.Pods, podOf(p, axis))
	}
	return result
}

func podOf(p *recording.PodCourse, axis axis) pod {
	took := recording.Duration(p.End.Sub(p.Start))
	if !p.Ended {
		took += ", not ended"
	}
	result := pod{Name: terminal.Clean(p.Name, maxName), Took: took}
	var parts []string
	for _, w := range p.Waits {
		result.Bars = append(result.Bars, axis.bar(kindClass(w.Reason), w.Start, w.End))
		if w.Blocks() {
			parts = append(parts, recording.Duration(w.For())+" waiting for "+w.Name())
		}
	}
	result.Title = clean(strings.Join(parts, ", "))
	return result
}

// named returns the name of an object, with its Cluster if the drains are of several.
func (v *view) named(cluster, name string) string {
	if v.several {
		name = cluster + ": " + name
	}
	return terminal.Clean(name, maxName)
}

func budgetOf(name string, b *recording.BudgetCourse, axis axis, end time.Time) budget {
	result := budget{Name: name}
	for _, step := range b.Steps {
		result.Most = max(result.Most, step.Allowed)
	}
	const height = 40
	var path strings.Builder
	var none, unread time.Duration
	for i, step := range b.Steps {
		until := end
		if i+1 < len(b.Steps) {
			until = b.Steps[i+1].Time
		}
		switch {
		case step.Gone:
			continue
		case step.Unread:
			unread += until.Sub(step.Time)
			continue
		case step.Allowed <= 0:
			none += until.Sub(step.Time)
			result.None = append(result.None, axis.bar("none", step.Time, until))
			continue
		}
		y := height - float64(step.Allowed)/float64(result.Most)*height
		fmt.Fprintf(&path, "M%s %dV%sH%sV%dZ", number(axis.at(step.Time)), height, number(y), number(axis.at(until)), height)
	}
	result.Path = path.String()
	result.Detail = fmt.Sprintf("at most %d allowed; none for %s", result.Most, recording.Duration(none))
	if unread > 0 {
		result.Detail += "; not read for " + recording.Duration(unread)
	}
	return result
}

// waits adds the longest waits.
func (v *view) waits(h *recording.History) {
	type podWait struct {
		cluster string
		pod     *recording.PodCourse
		history.Wait
	}
	var all []podWait
	for i := range h.Drains {
		for j := range h.Drains[i].Pods {
			p := &h.Drains[i].Pods[j]
			for _, w := range p.Waits {
				if w.Blocks() {
					all = append(all, podWait{h.Drains[i].Cluster, p, w})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b podWait) int { return cmp.Compare(b.For(), a.For()) })
	if more := len(all) - maxWaits; more > 0 {
		all, v.MoreWaits = all[:maxWaits], more
	}
	for _, w := range all {
		v.Waits = append(v.Waits, wait{
			Class: kindClass(w.Reason), Kind: string(history.KindOf(w.Reason)), Pod: v.named(w.cluster, w.pod.Name), Node: terminal.Clean(w.pod.Node, maxName),
			For: recording.Duration(w.For()), Seconds: strconv.FormatFloat(w.For().Seconds(), 'f', 1, 64), Name: clean(w.Name()),
			Start: w.Start.UTC().Format(time.TimeOnly),
		})
	}
}

// axis is the time axis of all charts.
type axis struct {
	start time.Time
	span  time.Duration
}

func axisOf(h *recording.History) axis {
	start, end := h.Start, h.Start
	for i := range h.Drains {
		for j := range h.Drains[i].Pods {
			p := &h.Drains[i].Pods[j]
			if p.Start.Before(start) {
				start = p.Start
			}
			if p.End.After(end) {
				end = p.End
			}
		}
	}
	if !end.After(start) {
		end = h.End
	}
	end = recovered(h, end, end.Add(end.Sub(start)/2))
	return axis{start, max(end.Sub(start), time.Second)}
}

// at returns the position of a time.
func (a axis) at(t time.Time) float64 {
	return min(max(float64(t.Sub(a.start))/float64(a.span)*width, 0), width)
}

// bar returns a bar that is wide enough to be seen.
func (a axis) bar(class string, from, to time.Time) bar {
	x := a.at(from)
	w := max(a.at(to)-x, 1)
	return bar{class, number(min(x, width-w)), number(w)}
}

func number(f float64) string { return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) }

// ticks labels the axis with the time since its start.
func (a axis) ticks() []tick {
	all := make([]tick, 0, ticks)
	for i := range ticks {
		elapsed := a.span * time.Duration(i) / ticks
		label := "+" + recording.Duration(elapsed)
		if i == 0 {
			label = a.start.UTC().Format(time.TimeOnly)
		}
		all = append(all, tick{float64(i) * 100 / ticks, label})
	}
	return all
}
