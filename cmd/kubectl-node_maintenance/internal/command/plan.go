package command

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"slices"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// planOptions are the flags of the command plan.
type planOptions struct {
	*options

	selector               string
	ruleFiles, policyFiles []string
	output                 output
}

func newPlan(o *options) *cobra.Command {
	p := &planOptions{options: o}
	command := &cobra.Command{
		Use:   "plan machine|node|machinedeployment NAME...",
		Short: "Predict what a drain would do now, and what would block it",
		Long: `Predict what a drain would do now: for each Pod whether it is evacuated, must complete or stays, the drain rule that decides, in which
step, and what its PodDisruptionBudget allows now. What would block the drain comes first, with what to do about it. Nothing is written.

The exit code is 0 if nothing blocks, 1 if something does, 2 if the command line is invalid, and 3 if it cannot be predicted, for example
because a right is missing.`,
		Example: `  # What will happen when this Machine is deleted?
  kubectl node-maintenance plan machine workers-abcde

  # What would this MachineDrainRule change?
  kubectl node-maintenance plan machine workers-abcde --rule rule.yaml

  # All Machines of a MachineDeployment, for a program
  kubectl node-maintenance plan machinedeployment workers -o json

  # With a context of a workload cluster
  kubectl node-maintenance plan node workers-abcde`,
		RunE: func(command *cobra.Command, args []string) error { return p.run(command.Context(), args) },
	}
	flags := command.Flags()
	flags.StringVarP(&p.selector, "selector", "l", "", "Select Machines or Nodes by label instead of by name.")
	flags.StringSliceVar(&p.ruleFiles, "rule", nil, "File with MachineDrainRules to predict with, in place of applied ones with the same name.")
	flags.StringSliceVar(&p.policyFiles, "policy", nil, "File with MachineDrainPolicies to predict with, in place of applied ones with the same name.")
	addOutput(flags, &p.output, "Output format: json, yaml or wide.")
	return command
}

func (p *planOptions) run(ctx context.Context, args []string) error {
	if err := p.output.check(outputText, outputWide, outputJSON, outputYAML); err != nil {
		return err
	}
	targets, err := p.targets(args, "machine", "node", "machinedeployment")
	if err != nil {
		return err
	}
	proposed, err := p.proposed()
	if err != nil {
		return err
	}
	connections, err := p.connect()
	if err != nil {
		return err
	}
	plan, err := p.plan(ctx, connections, targets, proposed)
	if err != nil {
		return err
	}
	plan.Gaps = connections.Gaps.List()
	switch p.output {
	case outputJSON, outputYAML:
		err = p.write(p.output, plan)
	default:
		report.WritePlan(p.Out, plan, p.output == outputWide, p.style())
	}
	if err == nil && plan.ExitCode() != report.ExitClear {
		err = exit{plan.ExitCode()}
	}
	return err
}

// targets are the objects that a command line names.
type targets struct {
	kind      string
	namespace string
	names     []string
	selector  labels.Selector
}

func (p *planOptions) targets(args []string, kinds ...string) (targets, error) {
	if len(args) == 0 {
		return targets{}, usagef("name a kind and objects, as in: machine NAME")
	}
	t := targets{names: args[1:]}
	var err error
	if t.kind, err = kindOf(args[0], kinds...); err != nil {
		return t, err
	}
	if t.selector, err = labels.Parse(p.selector); err != nil {
		return t, usagef("invalid selector: %v", err)
	}
	if (len(t.names) > 0) == (p.selector != "") {
		return t, usagef("name objects or select them with -l, not both")
	}
	t.namespace, err = p.namespace()
	return t, err
}

func (p *planOptions) plan(ctx context.Context, c *observe.Connections, t targets, proposed observe.Proposed) (*report.Plan, error) {
	plan := &report.Plan{Context: "management cluster, " + c.Current.Name}
	if !c.Current.HasMachines {
		if t.kind != "node" {
			return nil, errors.Errorf("%s is not a management cluster: it serves no Machines; use plan node NAME", c.Current.Name)
		}
		plan.Context = "workload cluster, " + c.Current.Name
		if len(proposed.Rules)+len(proposed.Policies) > 0 {
			return nil, usagef("--rule and --policy apply to Machines, in a management cluster")
		}
		return plan, p.planNodes(ctx, c.CurrentWorkload(), t, plan)
	}
	machines, err := p.machines(ctx, c, t)
	if err != nil {
		return nil, err
	}
	for _, key := range machines {
		drain, err := p.planMachine(ctx, c, key, proposed)
		if err != nil {
			return nil, err
		}
		plan.Drains = append(plan.Drains, drain)
	}
	return plan, nil
}

// nameFor returns the name by which the command line names a Machine: its own name, or that of its Node or MachineDeployment.
func (t targets) nameFor(machine *clusterv1.Machine) string {
	switch t.kind {
	case "node":
		return machine.Status.NodeRef.Name
	case "machinedeployment":
		return machine.Labels[clusterv1.MachineDeploymentNameLabel]
	default:
		return machine.Name
	}
}

// selects reports whether the command line selects an object, by its name or else by its labels.
func (t targets) selects(name string, objectLabels map[string]string) bool {
	if len(t.names) > 0 {
		return slices.Contains(t.names, name)
	}
	return t.selector.Matches(labels.Set(objectLabels))
}

// machines returns the Machines that the command line names. A Node names its Machine.
func (p *planOptions) machines(ctx context.Context, c *observe.Connections, t targets) ([]types.NamespacedName, error) {
	var keys []types.NamespacedName
	if t.kind == "machine" && len(t.names) > 0 {
		for _, name := range t.names {
			keys = append(keys, types.NamespacedName{Namespace: t.namespace, Name: name})
		}
		return keys, nil
	}
	all, err := c.Current.Machines(ctx, t.namespace)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for i := range all {
		machine := &all[i]
		name := t.nameFor(machine)
		found[name] = true
		if name != "" && t.selects(name, machine.Labels) {
			keys = append(keys, client.ObjectKeyFromObject(machine))
		}
	}
	for _, wanted := range t.names {
		if !found[wanted] {
			return nil, errors.Errorf("no Machine of %s %s in namespace %s", t.kind, wanted, t.namespace)
		}
	}
	if len(keys) == 0 {
		return nil, errors.Errorf("no Machine matches in namespace %s", t.namespace)
	}
	return keys, nil
}

func (p *planOptions) planMachine(ctx context.Context, c *observe.Connections, key types.NamespacedName, proposed observe.Proposed) (report.Drain, error) {
	machine, err := c.Current.MachineOf(ctx, key, proposed)
	if err != nil {
		return report.Drain{}, err
	}
	if skip := machinedrain.Skip(machine.Facts); skip != machinedrain.NotSkipped {
		return report.SkippedDrain(machine, skip), nil
	}
	workload, err := c.Workload(ctx, machine.ClusterKey())
	if err != nil {
		return report.Drain{}, err
	}
	node, err := workload.Node(ctx, machine.Status.NodeRef.Name)
	if err != nil {
		return report.Drain{}, err
	}
	if node == nil {
		return report.SkippedDrain(machine, machinedrain.SkipNodeGone), nil
	}
	maintenances, _, err := workload.Maintenances(ctx)
	if err != nil {
		return report.Drain{}, err
	}
	now := p.clock.Now()
	intent := report.IntentOf(machine, node, maintenances, now)
	observed, err := workload.Forecast(ctx, intent.Maintenance, node, now)
	if err != nil {
		return report.Drain{}, err
	}
	observed.Then = intent.Then
	attached, err := workload.Volumes(ctx, node, intent.Maintenance)
	if err != nil {
		return report.Drain{}, err
	}
	return report.MachineDrain(machine, node, intent, observed, attached), nil
}

func (p *planOptions) planNodes(ctx context.Context, w *observe.Workload, t targets, plan *report.Plan) error {
	var nodes []*corev1.Node
	if len(t.names) == 0 {
		all, err := w.Nodes(ctx)
		if err != nil {
			return err
		}
		for _, node := range all {
			if t.selector.Matches(labels.Set(node.Labels)) {
				nodes = append(nodes, node)
			}
		}
	}
	for _, name := range t.names {
		node, err := w.Node(ctx, name)
		if err != nil {
			return err
		}
		if node == nil {
			return errors.Errorf("there is no Node %s in %s", name, w.Name)
		}
		nodes = append(nodes, node)
	}
	maintenances, _, err := w.Maintenances(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		intent := report.NodeIntentOf(node, maintenances)
		observed, err := w.Forecast(ctx, intent.Maintenance, node, p.clock.Now())
		if err != nil {
			return err
		}
		plan.Drains = append(plan.Drains, report.NodeDrain(node, intent, observed))
	}
	return nil
}

// proposed reads the files of --rule and --policy.
func (p *planOptions) proposed() (observe.Proposed, error) {
	var proposed observe.Proposed
	for _, file := range p.ruleFiles {
		if err := documents(file, "MachineDrainRule", func(document []byte) error {
			rule := clusterv1.MachineDrainRule{}
			err := yaml.UnmarshalStrict(document, &rule)
			proposed.Rules = append(proposed.Rules, rule)
			return err
		}); err != nil {
			return proposed, usage{err}
		}
	}
	for _, file := range p.policyFiles {
		if err := documents(file, "MachineDrainPolicy", func(document []byte) error {
			policy := v1alpha1.MachineDrainPolicy{}
			err := yaml.UnmarshalStrict(document, &policy)
			proposed.Policies = append(proposed.Policies, policy)
			return err
		}); err != nil {
			return proposed, usage{err}
		}
	}
	return proposed, nil
}

// documents calls parse for each object of a YAML file, which must be of one kind.
func documents(file, kind string, parse func([]byte) error) error {
	content, err := os.ReadFile(file) //nolint:gosec // the file that the user names
	if err != nil {
		return errors.Wrapf(err, "reading a %s", kind)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "reading %s", file)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var object struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &object); err != nil {
			return errors.Wrapf(err, "reading %s", file)
		}
		if object.Kind != kind {
			return errors.Errorf("%s has an object of kind %q, expected %s", file, object.Kind, kind)
		}
		if err := parse(document); err != nil {
			return errors.Wrapf(err, "reading a %s from %s", kind, file)
		}
	}
}
