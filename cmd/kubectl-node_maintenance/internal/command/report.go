package command

import (
	"os"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/page"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
)

// The formats of the command report.
const (
	outputHTML     output = "html"
	outputMarkdown output = "md"
)

func newReport(o *options) *cobra.Command {
	format := outputHTML
	command := &cobra.Command{
		Use:   "report FILE",
		Short: "Write a report of recorded drains: how long they took, and what they waited for",
		Long: `Write a report of the drains in a recording of status --watch --record: how long they took, what they waited for, how many replicas of
each application were ready, what became of the evicted Pods, the disruptions that PodDisruptionBudgets allowed meanwhile, and what could be
changed. The report is one HTML page that needs no network, or Markdown for a ticket. No cluster is needed.

The file can also have traces of the manager as OTLP JSON, as the OpenTelemetry Collector and Jaeger write them. They lack the applications, and the
disruptions that budgets allowed.`,
		Example: `  # Record a rollout, until Ctrl-C
  kubectl node-maintenance status -A --watch --record rollout.jsonl

  kubectl node-maintenance report rollout.jsonl > rollout.html
  kubectl node-maintenance report rollout.jsonl -o md

  # A trace from Jaeger
  curl -s http://localhost:16686/api/v3/traces/b045dadd69baf46bd404979867b9fcba > trace.json
  kubectl node-maintenance report trace.json > trace.html`,
		RunE: func(_ *cobra.Command, args []string) error { return o.report(args, format) },
	}
	addOutput(command, &format, outputHTML, outputMarkdown)
	return command
}

func (o *options) report(args []string, format output) error {
	if len(args) != 1 {
		return usagef("name one file, as in: report rollout.jsonl")
	}
	if out, isFile := o.Out.(*os.File); format == outputHTML && isFile && term.IsTerminal(int(out.Fd())) {
		return usagef("redirect the HTML page to a file, as in: report %s > report.html; or use -o md", args[0])
	}
	file, err := os.Open(args[0])
	if err != nil {
		return errors.Wrap(err, "opening the recording")
	}
	defer file.Close() //nolint:errcheck // it is only read
	history, err := recording.Read(file)
	if err != nil {
		return errors.Wrap(err, args[0])
	}
	if format == outputMarkdown {
		return page.WriteMarkdown(o.Out, history)
	}
	return page.WriteHTML(o.Out, history)
}
