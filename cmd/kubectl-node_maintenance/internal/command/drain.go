package command

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"time"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/maintain"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// maintainOptions are the flags of the commands drain, cordon and complete.
type maintainOptions struct {
	*selection

	stage       v1alpha1.NodeMaintenanceStage
	reason      string
	wait        bool
	timeout     time.Duration
	maxParallel int
	yes         bool
	placement   bool
	together    string
	count       int // of the Nodes of together
	specFile    string
	spec        []byte // the content of specFile, as JSON
	output      output
}

// maxTogether is how many Nodes a NodeMaintenance can select by name.
const maxTogether = 32

const exitCodes = `The exit code is 0 if it is done, 1 if it is not, for example because the time limit is exceeded or the API server refuses it, 2 if the
command line is invalid, 3 if the state cannot be read, and 130 after Ctrl-C.`

func newDrain(o *options) *cobra.Command {
	m, command := newMaintain(o, v1alpha1.StageDrain, &cobra.Command{
		Use:   "drain machine|node|machinedeployment NAME...",
		Short: "Drain Nodes, or the Nodes of Machines, without deleting them",
		Long: `Drain Nodes, or the Nodes of Machines, without deleting them. The command prints the plan and asks, unless --yes is given. Then it requests
the drain: in a management cluster by the stage annotation of the Machine, in a workload cluster by a NodeMaintenance for each Node, or by one
for all of them with --together. The manager drains the Nodes, and the command waits. Ctrl-C ends the wait, and the drains continue. The
command complete ends them.

` + exitCodes,
		Example: `  # Drain the Node of a Machine
  kubectl node-maintenance drain machine workers-abcde --reason "firmware update"

  # With a context of a workload cluster: drain the Nodes of a rack, two at the same time
  kubectl node-maintenance drain node -l rack=7 --max-parallel 2 --yes

  # The same by one NodeMaintenance: the manager continues when the command ends. settings.yaml has fields of its spec, such as
  # evacuation: {surge: IfSingleReplica, drainTimeoutSeconds: 3600}
  kubectl node-maintenance drain node -l rack=7 --together rack-7 --max-parallel 2 --spec settings.yaml

  # Restore the Node
  kubectl node-maintenance complete machine workers-abcde`,
	})
	command.Flags().IntVar(&m.maxParallel, "max-parallel", 0, "Drain at most this many Nodes at the same time, and cordon the others first. 0 is no limit.")
	command.Flags().StringVar(&m.specFile, "spec", "",
		"YAML file with fields of the spec of the NodeMaintenances of Nodes, such as evacuation, drainPlan, drainRules and excludeFromLoadBalancers.")
	addPlacement(command.Flags(), &m.placement)
	command.Flags().BoolVarP(&m.yes, "yes", "y", false, "Drain without printing the plan and without asking.")
	return command
}

func newCordon(o *options) *cobra.Command {
	_, command := newMaintain(o, v1alpha1.StageCordon, &cobra.Command{
		Use:   "cordon machine|node|machinedeployment NAME...",
		Short: "Keep Nodes unschedulable until their maintenance is completed",
		Long: `Keep Nodes unschedulable until their maintenance is completed, by the stage annotation of the Machine or by a NodeMaintenance for each Node.

` + exitCodes,
		Example: `  kubectl node-maintenance cordon machine workers-abcde

  # With a context of a workload cluster
  kubectl node-maintenance cordon node -l rack=7 --reason "rack 7 gets new switches"`,
	})
	return command
}

func newComplete(o *options) *cobra.Command {
	_, command := newMaintain(o, v1alpha1.StageComplete, &cobra.Command{
		Use:   "complete machine|node|machinedeployment NAME...",
		Short: "Complete the maintenance of Nodes and restore their recorded state",
		Long: `Complete the maintenance that drain or cordon has requested: remove the stage annotation of the Machine, or delete the NodeMaintenance of
the Node. The manager restores the state in which the maintenance found the Node.

` + exitCodes,
		Example: `  kubectl node-maintenance complete machine workers-abcde

  # With a context of a workload cluster
  kubectl node-maintenance complete node -l rack=7`,
	})
	return command
}

// newMaintain adds what the commands have in common.
func newMaintain(o *options, stage v1alpha1.NodeMaintenanceStage, command *cobra.Command) (*maintainOptions, *cobra.Command) {
	m := &maintainOptions{selection: &selection{options: o}, stage: stage}
	flags := command.Flags()
	m.addFlags(flags)
	if stage != v1alpha1.StageComplete {
		flags.StringVar(&m.reason, "reason", "", "Explain to people why the Nodes are maintained.")
	}
	flags.StringVar(&m.together, "together", "", "Maintain Nodes of a workload cluster by one NodeMaintenance with this name instead of one for each.")
	flags.BoolVar(&m.wait, "wait", true, "Wait until it is done.")
	flags.DurationVar(&m.timeout, "timeout", 0, "End the wait after this time, for example 30m. 0 is no limit.")
	addOutput(command, &m.output, outputName)
	o.completeWith(command, "machine", "node", "machinedeployment")
	command.RunE = func(command *cobra.Command, args []string) error { return m.run(command.Context(), args) }
	return m, command
}

func (m *maintainOptions) run(ctx context.Context, args []string) error {
	t, err := m.validate(args)
	if err != nil {
		return err
	}
	connections, err := m.connect(ctx)
	if err != nil {
		return err
	}
	run, err := m.prepare(ctx, connections, t)
	if err != nil {
		return err
	}
	if m.stage == v1alpha1.StageDrain && !m.yes {
		if err := m.confirm(ctx, connections, t, max(len(run.Targets), m.count)); err != nil {
			return err
		}
	}
	return m.maintain(ctx, run)
}

func (m *maintainOptions) validate(args []string) (targets, error) {
	switch {
	case m.maxParallel < 0:
		return targets{}, usagef("--max-parallel must not be negative")
	case m.maxParallel > 0 && !m.wait && m.together == "":
		return targets{}, usagef("--max-parallel needs --wait: the command requests each drain when an earlier one has ended")
	case m.stage == v1alpha1.StageDrain && !m.yes && !m.hasTerminal():
		return targets{}, usagef("the command asks before it drains, and there is no terminal; pass --yes")
	}
	t, err := m.targets(args, "machine", "node", "machinedeployment")
	slices.Sort(t.names)
	if err == nil && m.specFile != "" {
		err = m.readSpec()
	}
	return t, err
}

// readSpec reads the file of --spec and checks it.
func (m *maintainOptions) readSpec() error {
	content, err := os.ReadFile(m.specFile)
	if err != nil {
		return usage{errors.Wrap(err, "reading --spec")}
	}
	var fields map[string]any
	if err := yaml.Unmarshal(content, &fields); err != nil {
		return usagef("%s: %v", m.specFile, err)
	}
	for _, field := range []string{"nodeSelector", "stage", "reason"} {
		if _, found := fields[field]; found {
			return usagef("%s must not have the field %s, which the command line says", m.specFile, field)
		}
	}
	if m.spec, err = json.Marshal(fields); err != nil {
		return errors.Wrap(err, "encoding --spec")
	}
	if err := m.configure(&v1alpha1.NodeMaintenance{}); err != nil {
		return usage{err}
	}
	return nil
}

// configure sets the fields of --spec in a NodeMaintenance, and the limit of one for all Nodes. It replaces whole lists.
func (m *maintainOptions) configure(maintenance *v1alpha1.NodeMaintenance) error {
	if m.together != "" && m.maxParallel > 0 {
		maintenance.Spec.MaxParallelNodes = ptr.To(intstr.FromInt(m.maxParallel))
	}
	if m.spec == nil {
		return nil
	}
	present, err := json.Marshal(maintenance.Spec)
	if err != nil {
		return errors.Wrap(err, "encoding a NodeMaintenance")
	}
	merged, err := strategicpatch.StrategicMergePatch(present, m.spec, maintenance.Spec)
	if err != nil {
		return errors.Wrapf(err, "merging %s", m.specFile)
	}
	spec := v1alpha1.NodeMaintenanceSpec{}
	if err := yaml.UnmarshalStrict(merged, &spec); err != nil {
		return errors.Wrap(err, m.specFile)
	}
	maintenance.Spec = spec
	return nil
}

// prepare finds the Machines or Nodes that the command line names.
func (m *maintainOptions) prepare(ctx context.Context, c *observe.Connections, t targets) (*maintain.Run, error) {
	run := &maintain.Run{Stage: m.stage, Reason: m.reason, MaxParallel: m.maxParallel, Reporter: m.reporter()}
	if c.Current.HasMachines {
		if m.together != "" || m.spec != nil {
			return nil, usagef("--together and --spec are for Nodes, with a context of a workload cluster; the MachineDrainPolicy decides about Machines")
		}
		keys, err := t.machines(ctx, c)
		for _, key := range keys {
			run.Targets = append(run.Targets, maintain.Target{Resource: "machine", Name: key.Name, Key: key})
		}
		run.Kind = maintain.Machines{Cluster: c.Current}
		return run, err
	}
	if t.kind != "node" {
		return nil, noMachines(c.Current, "; name Nodes")
	}
	if !c.Current.HasMaintenances {
		return nil, errors.Errorf("%s does not serve NodeMaintenances: no manager is connected to it", c.Current.Name)
	}
	names, err := m.nodeNames(ctx, c.CurrentWorkload(), t)
	if err != nil {
		return nil, err
	}
	nodes := maintain.Nodes{Cluster: c.Current, Configure: m.configure, New: func(target maintain.Target) *v1alpha1.NodeMaintenance {
		return report.ManualIntent(nodeNamed(target.Name), nil).Maintenance
	}}
	run.Kind = nodes
	if m.together != "" {
		return m.prepareTogether(run, nodes, names)
	}
	if run.Targets, err = m.nodeTargets(ctx, nodes, names, t); err == nil && len(run.Targets) == 0 {
		err = errors.Errorf("no selected Node of %s has a NodeMaintenance of this plugin", c.Current.Name)
	}
	return run, err
}

// nodeTargets returns the NodeMaintenances of the Nodes, one for each.
func (m *maintainOptions) nodeTargets(ctx context.Context, nodes maintain.Nodes, names []string, t targets) ([]maintain.Target, error) {
	var all []maintain.Target
	for _, name := range names {
		target := maintain.Target{Resource: "node", Name: name, Key: types.NamespacedName{Name: report.ManualName(nodeNamed(name))}}
		if m.stage == v1alpha1.StageComplete && len(t.names) == 0 { // label selection: skip the Nodes without a maintenance
			if stage, err := nodes.Stage(ctx, target); err != nil || stage == "" {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		all = append(all, target)
	}
	return all, nil
}

// prepareTogether maintains all Nodes by one NodeMaintenance. To complete it, its name suffices.
func (m *maintainOptions) prepareTogether(run *maintain.Run, nodes maintain.Nodes, names []string) (*maintain.Run, error) {
	if len(names) > maxTogether {
		return nil, usagef("%d Nodes are selected, and one NodeMaintenance selects at most %d by name", len(names), maxTogether)
	}
	m.count = len(names)
	nodes.New = func(maintain.Target) *v1alpha1.NodeMaintenance {
		maintenance := report.ManualIntent(nodeNamed(""), nil).Maintenance
		maintenance.Name, maintenance.Spec.NodeSelector = m.together, v1alpha1.NodeSelector{}
		if m.stage != v1alpha1.StageComplete {
			maintenance.Spec.NodeSelector = v1alpha1.SelectNodes(names...)
		}
		return maintenance
	}
	run.Kind, run.MaxParallel = nodes, 0
	run.Targets = []maintain.Target{{Resource: "nodemaintenance", Name: m.together, Key: types.NamespacedName{Name: m.together}}}
	return run, nil
}

// nodeNames returns the names of the Nodes. The maintenance of a Node that was deleted can be completed.
func (m *maintainOptions) nodeNames(ctx context.Context, w *observe.Workload, t targets) ([]string, error) {
	if m.stage == v1alpha1.StageComplete && len(t.names) > 0 {
		return t.names, nil
	}
	nodes, err := t.nodes(ctx, w)
	var names []string
	for _, node := range nodes {
		if observe.IsUnread(node) { // it may not exist, and the wait would not end
			return nil, errors.Errorf("no right to get Node %s in %s", node.Name, w.Name)
		}
		names = append(names, node.Name)
	}
	return names, err
}

func nodeNamed(name string) *corev1.Node {
	node := &corev1.Node{}
	node.Name = name
	return node
}

// errTimeout ends the wait after --timeout.
var errTimeout = errors.New("timed out")

// maintain requests the stage and waits.
func (m *maintainOptions) maintain(ctx context.Context, run *maintain.Run) error {
	err := run.Request(ctx)
	if err == nil && m.wait {
		if m.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, m.timeout, errTimeout)
			defer cancel()
		}
		err = run.Wait(ctx)
	}
	switch {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errTimeout):
		m.reporter().stopped("the time limit of "+m.timeout.String()+" is exceeded", run)
		return exit{report.ExitBlocked}
	case ctx.Err() != nil:
		m.reporter().stopped("interrupted", run)
		return exit{report.ExitInterrupted}
	case err != nil:
		m.reporter().stopped("cannot wait: "+err.Error(), run)
		return exit{report.ExitUnknown}
	case run.Failures() > 0:
		return exit{report.ExitBlocked}
	default:
		return nil
	}
}
