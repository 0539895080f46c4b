package command

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/maintain"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxMessage is the maximum number of characters of a message about a target, and maxStopped the number of targets that a message names.
const (
	maxMessage = 700
	maxStopped = 5
)

// hasTerminal reports whether the user can answer a question.
func (o *options) hasTerminal() bool {
	file, ok := o.In.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// confirm prints the plan and asks. It returns an error unless the user agrees.
func (m *maintainOptions) confirm(ctx context.Context, c *observe.Connections, t targets, count int) error {
	planner := &planOptions{selection: m.selection, configure: m.configure, placement: m.placement, inPlace: true}
	plan, err := planner.plan(ctx, c, t, observe.Proposed{})
	if ctx.Err() != nil {
		return exit{report.ExitInterrupted}
	}
	switch {
	case observe.IsNoMachine(err):
		return err
	case err != nil: // the drain needs no right to read what the plan needs
		fmt.Fprintln(m.ErrOut, terminal.Clean("The plan cannot be predicted: "+err.Error(), maxError))
	default:
		plan.Gaps = c.Gaps.List()
		m.proposePlan(plan)
	}
	question := "Drain this Node?"
	if count > 1 {
		question = fmt.Sprintf("Drain these %d Nodes?", count)
	}
	agreed, err := m.ask(ctx, question)
	if err == nil && !agreed {
		fmt.Fprintln(m.ErrOut, "Nothing was changed.")
		err = exit{report.ExitBlocked}
	}
	return err
}

// proposePlan prints the plan about which the user decides. Like the question, it is no result: the standard output may have a format for
// programs.
func (o *options) proposePlan(plan *report.Plan) {
	report.WritePlan(o.ErrOut, plan, false, terminal.StyleFor(o.ErrOut, o.noColors()))
}

// ask asks a question that is answered by y or n.
func (o *options) ask(ctx context.Context, question string) (agreed bool, _ error) {
	fmt.Fprint(o.ErrOut, question+" (y/N): ")
	answer := make(chan string, 1)
	go func() { // a read cannot be interrupted
		line, _ := bufio.NewReader(o.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(o.ErrOut, "\nNothing was changed.")
		return false, exit{report.ExitInterrupted}
	case text := <-answer:
		return text == "y" || text == "yes", nil
	}
}

// progress prints what happens to the targets, in the format of kubectl. Results are printed to standard output, and what is waited for to
// standard error.
type progress struct {
	*maintainOptions
}

var _ maintain.Reporter = progress{}

func (m *maintainOptions) reporter() progress { return progress{m} }

// Wrote implements maintain.Reporter.
func (p progress) Wrote(w maintain.Written) {
	resource := terminal.Clean(strings.ToLower(w.Kind.Kind)+"."+w.Kind.Group+"/"+w.Name, maxMessage)
	if p.output == outputName {
		fmt.Fprintln(p.Out, resource)
		return
	}
	fmt.Fprintln(p.Out, resource+" "+w.Action)
}

// done says what a stage has done, as kubectl says it.
var done = map[v1alpha1.NodeMaintenanceStage]string{
	v1alpha1.StageCordon: "cordoned", v1alpha1.StageDrain: "drained", v1alpha1.StageComplete: "completed",
}

// Reached implements maintain.Reporter.
func (p progress) Reached(target maintain.Target, stage v1alpha1.NodeMaintenanceStage) {
	if p.output != outputName {
		fmt.Fprintln(p.Out, terminal.Clean(target.String(), maxMessage)+" "+done[stage])
	}
}

// Waits implements maintain.Reporter.
func (p progress) Waits(target maintain.Target, message string) {
	p.say(target.String() + ": " + message)
}

// Failed implements maintain.Reporter.
func (p progress) Failed(target maintain.Target, message string) {
	p.say("error: " + target.String() + ": " + message)
}

// Reconnects implements maintain.Reporter.
func (p progress) Reconnects(err error) { p.say("The wait continues after an error: " + err.Error()) }

func (p progress) say(message string) { fmt.Fprintln(p.ErrOut, terminal.Clean(message, maxMessage)) }

// stopped says what continues after the wait has ended.
func (p progress) stopped(why string, run *maintain.Run) {
	p.say("The wait has ended: " + why + ".")
	active, queued := run.Active(), run.Queued()
	if len(active) > 0 {
		what := map[v1alpha1.NodeMaintenanceStage]string{v1alpha1.StageCordon: "cordon", v1alpha1.StageDrain: "drain", v1alpha1.StageComplete: "completion"}[p.stage]
		p.say(fmt.Sprintf("The %s of %s continues. To follow it: kubectl node-maintenance status", what, targetNames(active)) + p.where())
	}
	if p.stage == v1alpha1.StageDrain && len(active) > 0 {
		command, where := "kubectl node-maintenance complete", p.where()
		if p.together != "" {
			command, where = "kubectl delete", p.whereOfKubectl()
		}
		p.say(fmt.Sprintf("To end the drain: %s %s %s", command, active[0].Resource, active[0].Name) + where)
	}
	switch {
	case len(queued) == 0:
	case run.MaxParallel > 0 && run.MaxParallel < len(run.Targets):
		p.say(fmt.Sprintf("The drain of %s was not requested; these Nodes stay cordoned. To continue, run the command again.", targetNames(queued)))
	default:
		p.say("Not requested for " + targetNames(queued) + ". To continue, run the command again.")
	}
}

// where returns the flags by which the command line has selected what it is about.
func (o *options) where() string {
	where := o.whereOfKubectl()
	if o.asWorkload {
		where += " --as-workload"
	}
	return where
}

// whereOfKubectl returns those of these flags that kubectl has: they select a kubeconfig, a context and a namespace.
func (o *options) whereOfKubectl() string {
	var flags strings.Builder
	for _, flag := range []struct {
		name  string
		value *string
	}{{"kubeconfig", o.config.KubeConfig}, {"context", o.config.Context}, {"namespace", o.config.Namespace}} {
		if flag.value != nil && *flag.value != "" {
			flags.WriteString(" --" + flag.name + "=" + quoted(*flag.value))
		}
	}
	return flags.String()
}

// quoted quotes a text for a shell, if that is necessary.
func quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+=,", r)
	}) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

func targetNames(targets []maintain.Target) string {
	names := make([]string, 0, len(targets))
	for _, target := range targets {
		names = append(names, target.String())
	}
	return text.List(names, maxStopped)
}
