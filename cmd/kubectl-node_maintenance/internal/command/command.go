// Package command implements the commands of the plugin, one file for each.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

// maxError is the maximum number of characters of an error.
const maxError = 2000

// exit is an error that carries the exit code of a command that has already reported its result.
type exit struct {
	code int
}

func (e exit) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// usage is an error about arguments or flags.
type usage struct {
	error
}

func usagef(format string, args ...any) error { return usage{errors.Errorf(format, args...)} }

// Run runs the plugin and returns its exit code: 0 and 1 are the answers of a command, 2 is an invalid command line, 3 means that the
// command could not find an answer, and 130 that a signal has interrupted it.
func Run(version string, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, version, args, in, out, errOut)
}

// execute runs the plugin until the context is done.
func execute(ctx context.Context, version string, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot(version, genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var done exit
	var invalid usage
	switch {
	case err == nil:
		return report.ExitClear
	case errors.As(err, &done):
		return done.code
	case errors.As(err, &invalid):
		fmt.Fprintln(errOut, "error: "+terminal.Clean(err.Error(), maxError))
		fmt.Fprintln(errOut, "See 'kubectl node-maintenance --help'.")
		return report.ExitUsage
	case ctx.Err() != nil:
		fmt.Fprintln(errOut, "error: interrupted")
		return report.ExitInterrupted
	default:
		fmt.Fprintln(errOut, "error: "+terminal.Clean(err.Error(), maxError))
		return report.ExitUnknown
	}
}

// options are the flags of all commands.
type options struct {
	genericiooptions.IOStreams

	config             *genericclioptions.ConfigFlags
	version            string
	workloadKubeconfig string
	asWorkload         bool
	noColor            bool
	warnings           *warnings
	clock              clock.WithTicker
}

func newRoot(version string, streams genericiooptions.IOStreams) *cobra.Command {
	o := &options{
		IOStreams: streams, config: genericclioptions.NewConfigFlags(true), version: version, warnings: newWarnings(streams.ErrOut), clock: clock.RealClock{},
	}
	root := &cobra.Command{
		Use:   "kubectl-node_maintenance",
		Short: "Show drains of Nodes before, while and after they happen, and drain Nodes",
		Long: `Show drains of Nodes before, while and after they happen, and drain Nodes.

With a context of a management cluster, the objects are Machines, and their workload clusters are found through the kubeconfig Secrets of
the Clusters, or with --workload-kubeconfig. With a context of a workload cluster, the objects are Nodes. With --as-workload, they are the Nodes
of a management cluster itself.`,
		Example: `  # What will happen when this Machine is deleted, and what will block?
  kubectl node-maintenance plan machine workers-abcde

  # Why is this Pod still on its Node?
  kubectl node-maintenance why pod web-0 -n shop

  # All drains
  kubectl node-maintenance status -A

  # Drain the Node of a Machine without deleting the Machine, and restore it
  kubectl node-maintenance drain machine workers-abcde
  kubectl node-maintenance complete machine workers-abcde`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q", args[0])
			}
			return nil
		},
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
		SilenceErrors: true, SilenceUsage: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl node-maintenance"},
	}
	root.CompletionOptions.DisableDefaultCmd = true // it would complete the name of the program: kubectl calls Completer
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	o.config.AddFlags(root.PersistentFlags())
	root.PersistentFlags().StringVar(&o.workloadKubeconfig, "workload-kubeconfig", "",
		"Kubeconfig file for the workload cluster, instead of the Secret of the Cluster.")
	root.PersistentFlags().BoolVar(&o.asWorkload, "as-workload", false,
		"Read a management cluster as a workload cluster: Nodes and Pods are its own, and not those of its Machines.")
	root.PersistentFlags().BoolVar(&o.noColor, "no-color", false, "Print without colors, as if NO_COLOR was set.")
	o.completeFlags(root)
	root.AddCommand(newPlan(o), newWhy(o), newStatus(o), newDrain(o), newCordon(o), newComplete(o), newReport(o), newVersion(o))
	return root
}

// connect connects to the cluster of the context.
func (o *options) connect(ctx context.Context) (*observe.Connections, error) {
	config, err := o.config.ToRESTConfig()
	if err != nil {
		return nil, errors.Wrap(err, "reading the kubeconfig")
	}
	config.UserAgent, config.WarningHandler = "kubectl-node_maintenance/"+o.version, o.warnings
	raw, err := o.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, errors.Wrap(err, "reading the kubeconfig")
	}
	name := raw.CurrentContext
	if o.config.Context != nil && *o.config.Context != "" {
		name = *o.config.Context
	}
	connections, err := observe.NewConnections(ctx, config, terminal.Clean(name, maxError), o.workloadKubeconfig)
	if err == nil && o.asWorkload {
		connections.Current.HasMachines = false
	}
	return connections, err
}

// noMachines is the error of a command line that names Machines, or objects that contain them, with a workload cluster.
func noMachines(c *observe.Cluster, instead string) error {
	return errors.Errorf("%s has no Machines: it does not serve them, or is read as a workload cluster (--as-workload)%s", c.Name, instead)
}

// noMachineOfNode is the error of a command line that names a Node with a management cluster.
func noMachineOfNode(c *observe.Cluster, namespace, node string) error {
	return errors.Errorf("no Machine of Node %s in namespace %s of %s; for a Node of this cluster itself, pass --as-workload", node, namespace, c.Name)
}

// namespace returns the namespace of the context or of --namespace.
func (o *options) namespace() (string, error) {
	namespace, _, err := o.config.ToRawKubeConfigLoader().Namespace()
	return namespace, errors.Wrap(err, "reading the namespace of the context")
}

func (o *options) style() terminal.Style { return terminal.StyleFor(o.Out, o.noColors()) }

// noColors reports whether the user has disabled colors, see https://no-color.org.
func (o *options) noColors() bool { return o.noColor || os.Getenv("NO_COLOR") != "" }

// kindOf returns which of the kinds an argument names, by its plural, its short name or its singular.
func kindOf(argument string, kinds ...string) (string, error) {
	names := map[string]string{
		"machines": "machine", "ma": "machine", "nodes": "node", "no": "node", "machinedeployments": "machinedeployment", "md": "machinedeployment",
		"pods": "pod", "po": "pod", "clusters": "cluster", "cl": "cluster",
	}
	kind := strings.ToLower(argument)
	if long, found := names[kind]; found {
		kind = long
	}
	if slices.Contains(kinds, kind) {
		return kind, nil
	}
	return "", usagef("%q is not a kind that this command knows; use one of %s", argument, strings.Join(kinds, ", "))
}
