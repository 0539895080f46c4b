package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	words "github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	maxCell     = 120 // characters in a column
	maxLine     = 700 // characters of a message
	maxNote     = 2 * maxLine
	maxPodNames = 3   // of a problem
	maxPodName  = 200 // characters, so that a tenant's long names leave room for what is said about them
	maxVolumes  = 10  // of a Node, unless the output is wide
	none        = "-"
)

const (
	costs           = "WARNINGS: what the evictions cost applications"
	warningsMissing = "NOT READ: warnings may be missing"
)

// text writes lines whose arguments are made safe for a terminal.
type text struct {
	io.Writer
	style terminal.Style
	wide  bool // with more columns, and each Pod
}

func (t text) line(format string, args ...any) {
	t.part(format+"\n", args...)
}

// part writes a part of a line, see line.
func (t text) part(format string, args ...any) {
	clean := make([]any, len(args))
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			arg = terminal.Clean(s, maxLine)
		}
		clean[i] = arg
	}
	fmt.Fprintf(t, format, clean...)
}

// WritePlan writes a plan for people, with more columns if it is wide.
func WritePlan(w io.Writer, p *Plan, wide bool, style terminal.Style) {
	t := text{Writer: w, style: style, wide: wide}
	for i := range p.Drains {
		if i > 0 {
			t.line("")
		}
		t.drain(&p.Drains[i])
	}
	t.warnings("WARNINGS: what all these drains together cost applications", p.Warnings)
	t.notes(p.Notes)
	t.gaps(style.Warning("NOT READ: the prediction may be incomplete"), p.Gaps)
	t.gaps(style.Warning(warningsMissing), p.WarningGaps)
	t.line("")
	fmt.Fprintln(t, style.Faint(terminal.Clean("Read from "+p.Context+". Nothing was changed.", maxLine)))
}

func (t text) drain(d *Drain) {
	t.title(d)
	if d.Skipped != "" {
		t.line("The Node is not drained: %s.", d.Skipped)
		return
	}
	t.line("%s", d.summary())
	t.problems(t.style.Blocker("BLOCKS: the drain does not finish in the present state"), d.Blockers)
	t.problems(t.style.Warning("UNKNOWN: missing information prevents a prediction"), d.Unknown)
	t.problems(t.style.Warning("DELAYS: the drain waits, and continues automatically"), d.Delays)
	t.warnings(costs, d.Warnings)
	if len(d.Pods) > 0 {
		t.line("")
		t.podTable(d.Pods)
	}
	if len(d.Volumes) > 0 {
		t.line("")
		t.volumes(d.Volumes)
	}
	t.notes(d.Notes)
}

func (t text) notes(notes []string) {
	for _, note := range notes {
		t.line("")
		fmt.Fprintln(t, "Note: "+terminal.Clean(note, maxNote))
	}
}

func (t text) volumes(all []string) {
	names, limit := make([]string, 0, len(all)), maxVolumes
	for _, name := range all {
		names = append(names, terminal.Clean(name, maxPodName))
	}
	if t.wide {
		limit = len(names)
	}
	fmt.Fprintln(t, "Volumes that must detach: "+words.List(names, limit))
}

func (t text) title(d *Drain) {
	parts := []string{"Node " + d.Node}
	if d.Machine != "" {
		parts = []string{"Machine " + d.Machine, "Node " + d.Node, "Cluster " + d.Cluster}
		if d.Policy != "" {
			parts = append(parts, "MachineDrainPolicy "+d.Policy)
		}
	}
	if d.NodeMaintenance != "" {
		parts = append(parts, "NodeMaintenance "+d.NodeMaintenance+" in stage "+d.Stage)
	}
	fmt.Fprintln(t, t.style.Title(terminal.Clean(strings.Join(parts, ", "), maxLine)))
}

// summary says in one line what happens to the Pods.
func (d *Drain) summary() string {
	counts := map[forecast.Outcome]int{}
	for i := range d.Pods {
		counts[d.Pods[i].Outcome]++
	}
	var parts []string
	for _, each := range []struct {
		outcome forecast.Outcome
		format  string
	}{
		{forecast.Evacuated, "%s evacuated"}, {forecast.Completes, "%s must complete"}, {forecast.Undecided, "%s undecided"},
		{forecast.Stays, "%s left on the Node"}, {forecast.Finished, "%s finished"},
	} {
		if n := counts[each.outcome]; n > 0 {
			parts = append(parts, fmt.Sprintf(each.format, words.Count(n, "Pod")))
		}
	}
	if len(parts) == 0 {
		parts = []string{"The Node has no Pods"}
	}
	summary := strings.Join(parts, ", ")
	if d.Steps > 1 {
		summary += fmt.Sprintf(", in %d steps", d.Steps)
	}
	if d.Machine != "" {
		summary += "; " + d.timeoutText()
	}
	return summary + "."
}

func (t text) problems(title string, problems []Problem) {
	if len(problems) == 0 {
		return
	}
	t.line("")
	fmt.Fprintln(t, title)
	for _, problem := range problems {
		if len(problem.Pods) > 0 {
			t.line("  %s: %s", PodNames(problem.Pods), problem.Message)
		} else {
			t.line("  %s", problem.Message)
		}
		if problem.Fix != "" {
			t.line("    Fix: %s", problem.Fix)
		}
		if problem.Guide != "" {
			t.line("    See: %s", problem.Guide)
		}
	}
}

// warnings writes at most maxGroups warnings of a kind, unless the output is wide.
func (t text) warnings(title string, all []Warning) {
	if len(all) == 0 {
		return
	}
	t.line("")
	fmt.Fprintln(t, t.style.Warning(title))
	kinds := map[forecast.WarningKind]int{}
	for i := range all {
		w := &all[i]
		kinds[w.Kind]++
		if n := kinds[w.Kind]; n <= maxGroups || t.wide {
			t.line("  %s: %s", w.subject(), w.Message)
			if w.Fix != "" && n == 1 {
				t.line("    Fix: %s", w.Fix)
			}
		} else if i+1 == len(all) || all[i+1].Kind != w.Kind {
			t.line("  %s more %s", strconv.Itoa(n-maxGroups), string(w.Kind))
		}
	}
}

// subject names the Pods: those of a controller by their number.
func (w *Warning) subject() string {
	switch object := words.Cut(w.Object, maxPodName); {
	case object == "":
		return PodNames(w.Pods)
	case len(w.Pods) == 1:
		return PodNames(w.Pods) + " of " + object
	default:
		return words.Count(len(w.Pods), "Pod") + " of " + object
	}
}

// PodNames lists Pods, of many only the first.
func PodNames(names []string) string {
	short := make([]string, 0, len(names))
	for _, name := range names {
		short = append(short, words.Cut(name, maxPodName))
	}
	return words.Named("Pod", short, maxPodNames)
}

// podTable writes the Pods. The style is not applied here: escape sequences would be counted as width.
func (t text) podTable(all []Pod) {
	w := printers.GetNewTabWriter(t)
	header := []string{"STEP", "POD", "OUTCOME", "RULE", "ORDER", "BUDGET", "ALLOWED", "EVACUATORS"}
	if t.wide {
		header = append(header, "TYPE", "REASON", "WAITS FOR", "VOLUMES")
	}
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for i := range all {
		p := &all[i]
		cells := []string{none, p.Namespace + "/" + p.Name, string(p.Outcome), p.Rule, none, none, none, strings.Join(p.Evacuators, ",")}
		if p.Step > 0 {
			cells[0], cells[4] = strconv.Itoa(p.Step), strconv.Itoa(int(p.Order))
		}
		if len(p.Budgets) > 0 {
			cells[5], cells[6] = budgetCells(p.Budgets)
		}
		if t.wide {
			cells = append(cells, string(p.Type), p.Reason, p.WaitsFor, strings.Join(p.Volumes, ","))
		}
		fmt.Fprintln(w, strings.Join(cleanCells(cells), "\t"))
	}
	_ = w.Flush()
}

func budgetCells(all []Budget) (names, allowed string) {
	var nameCells, allowedCells []string
	for _, b := range all {
		nameCells = append(nameCells, b.Name)
		allowedCells = append(allowedCells, fmt.Sprintf("%d of %d", b.DisruptionsAllowed, b.ExpectedPods))
	}
	return strings.Join(nameCells, ","), strings.Join(allowedCells, ",")
}

func cleanCells(cells []string) []string {
	clean := make([]string, len(cells))
	for i, cell := range cells {
		if clean[i] = terminal.Clean(cell, maxCell); clean[i] == "" {
			clean[i] = none
		}
	}
	return clean
}
