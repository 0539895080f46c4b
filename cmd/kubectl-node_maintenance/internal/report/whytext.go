package report

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	words "github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const maxMessageLines = 12

// WriteWhy writes an explanation for people. now is the time that ages count from.
func WriteWhy(w io.Writer, y *Why, now time.Time, style terminal.Style) {
	t := text{Writer: w, style: style}
	fmt.Fprintln(t, style.Title(terminal.Clean(y.Subject, maxLine)))
	for _, line := range terminal.Lines(y.Answer, maxMessageLines, maxLine) {
		fmt.Fprintln(t, line)
	}
	if c := y.Condition; c != nil {
		t.heading("CONDITION NodeMaintenance")
		t.line("  %s for %s, now %s", string(c.Status), age(c.Since, now), c.Reason)
		if c.Message != y.Answer {
			for _, line := range terminal.Lines(c.Message, maxMessageLines, maxLine) {
				fmt.Fprintln(t, "  "+line)
			}
		}
	}
	for i := range y.Maintenances {
		t.maintenance(&y.Maintenances[i], now)
	}
	if y.Pod != nil {
		t.pod(y.Pod, now)
	}
	t.problems(style.Blocker("WAITS FOR"), y.Problems)
	t.warnings(costs, y.Warnings)
	for _, link := range y.Guide {
		if len(y.Problems) > 0 {
			break // each problem has its link
		}
		t.line("")
		t.line("See: %s", link)
	}
	t.gaps(style.Title("NOT READ"), y.Gaps)
	t.gaps(style.Title(warningsMissing), y.WarningGaps)
	t.line("")
	fmt.Fprintln(t, style.Faint(terminal.Clean("Read from "+y.Context+". Nothing was changed.", maxLine)))
}

// gaps writes what could not be read.
func (t text) gaps(title string, gaps []string) {
	if len(gaps) > 0 {
		t.line("")
		fmt.Fprintln(t, title)
	}
	for _, gap := range gaps {
		t.line("  %s", gap)
	}
}

func (t text) heading(title string) {
	t.line("")
	fmt.Fprintln(t, t.style.Title(title))
}

func (t text) maintenance(m *Maintenance, now time.Time) {
	t.heading("NODEMAINTENANCE " + terminal.Clean(m.Name, maxLine))
	t.line("  Stage %s for %s: %s", m.Stage, age(m.Since, now), m.Message)
	if m.Reason != "" {
		t.line("  Requested because: %s", m.Reason)
	}
	t.line("  %d Pods evacuating, %d pending, %d skipped", m.Evacuating, m.Pending, m.Skipped)
	t.blocked("", m.Blocked, now)
}

func (t text) pod(p *PodWhy, now time.Time) {
	t.rules(p)
	t.place(p)
	t.budgets(p.Budgets)
	if len(p.Evacuators) > 0 || p.Surge != nil {
		t.heading("EVACUATORS, in this order")
		t.line("  %s", cmp.Or(strings.Join(p.Evacuators, ", "), none))
	}
	if p.Surge != nil {
		t.line("  %s", p.Surge.text())
	}
	for _, problem := range p.Problems {
		t.line("  Ignored: %s", problem)
	}
	if p.Evacuation != nil {
		t.evacuation(p.Evacuation, now)
	}
	if p.Deletion != "" {
		t.heading("DELETION")
		t.line("  Its grace period ends at %s; finalizers: %s", p.Deletion, cmp.Or(strings.Join(p.Finalizers, ", "), none))
	}
}

func (s *Surge) text() string {
	if s.Refusal != "" {
		return "No surge: " + s.Message
	}
	return "Surge: " + cmp.Or(s.Message, "the controllers of the Deployment have not observed its last change")
}

func (t text) rules(p *PodWhy) {
	t.heading("DRAIN RULES: the first one that matches decides")
	w := printers.GetNewTabWriter(t)
	fmt.Fprintln(w, "  \tRULE\tBEHAVIOR\tORDER\tMATCHES\tWHY")
	decided := false
	for _, r := range p.Rules {
		mark, order := " ", none
		if r.Decides {
			mark, decided = ">", true
		}
		if r.Behavior == v1alpha1.DrainBehaviorDrain {
			order = strconv.Itoa(int(r.Order))
		}
		fmt.Fprintln(w, "  "+mark+"\t"+strings.Join(cleanCells([]string{r.Rule, string(r.Behavior), order, r.Result, r.Why}), "\t"))
	}
	if !decided {
		fmt.Fprintln(w, "  >\t(no rule matches)\tDrain\t0\tyes\t-")
	}
	_ = w.Flush()
}

func (t text) place(p *PodWhy) {
	t.heading("PLACE IN THE PLAN")
	switch {
	case p.Step == 0:
		t.line("  %s: it has no place in the plan", string(p.Outcome))
	case len(p.Earlier) == 0:
		t.line("  %s in step %d of %d: no Pod must terminate before", string(p.Outcome), p.Step, p.Steps)
	default:
		t.line("  %s in step %d of %d, after the Pods of earlier steps: %s", string(p.Outcome), p.Step, p.Steps, PodNames(p.Earlier))
	}
}

func (t text) budgets(all []Budget) {
	if len(all) > 0 {
		t.heading("PODDISRUPTIONBUDGETS")
	}
	for _, b := range all {
		t.line("  %s allows %s: %d of %d Pods are healthy, %d must be", b.Name, words.Count(b.DisruptionsAllowed, "disruption"), b.CurrentHealthy, b.ExpectedPods,
			b.DesiredHealthy)
		if b.NeverAllows {
			t.line("    It cannot allow a disruption with this number of Pods, even if all are ready")
		}
	}
}

func (t text) evacuation(e *EvacuationView, now time.Time) {
	t.heading("EVACUATION " + terminal.Clean(e.Name, maxLine))
	t.line("  Requested %s ago by %s; %s refused", age(e.Since, now), strings.Join(e.Instigators, ", "), words.Count(e.FailedEvictions, "eviction"))
	if e.ActiveEvacuator != "" {
		t.line("  Active evacuator: %s", e.ActiveEvacuator)
	}
	for _, c := range e.Conditions {
		t.line("  %s %s for %s, now %s: %s", c.Type, string(c.Status), age(c.Since, now), c.Reason, c.Message)
	}
}

// age returns how long ago a time was, as kubectl prints it.
func age(since string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, since)
	if err != nil {
		return "an unknown time"
	}
	return duration.HumanDuration(now.Sub(t))
}
