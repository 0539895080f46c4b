package command

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// planOptions are the flags of the command plan.
type planOptions struct {
	*selection

	ruleFiles, policyFiles []string
	output                 output
	placement              bool
	failOn                 []string
	// configure changes the settings of the NodeMaintenance that the command drain creates. It is nil in the command plan.
	configure func(*v1alpha1.NodeMaintenance) error
	// inPlace means that the drain is predicted which the command drain requests for a Machine, and not that of its deletion.
	inPlace bool
}

func newPlan(o *options) *cobra.Command {
	p := &planOptions{selection: &selection{options: o}}
	command := &cobra.Command{
		Use:   "plan machine|node|machinedeployment NAME...",
		Short: "Predict what a drain would do now, and what would block it",
		Long: `Predict what a drain would do now: for each Pod whether it is evacuated, must complete or stays, the drain rule that decides, in which
step, and what its PodDisruptionBudget allows now. What would block the drain comes first, with what to do about it, then what the evictions
cost applications. Nothing is written.

The exit code is 0 if nothing blocks, 1 if something does or, with --fail-on warnings, if there are warnings, 2 if the command line is
invalid, and 3 if it cannot be predicted, for example because a right is missing.`,
		Example: `  # What will happen when this Machine is deleted?
  kubectl node-maintenance plan machine workers-abcde

  # What would this MachineDrainRule change?
  kubectl node-maintenance plan machine workers-abcde --rule rule.yaml

  # Is this drain harmless? Exit code 1 if something blocks, or if it costs applications something
  kubectl node-maintenance plan machine workers-abcde --fail-on warnings

  # The same, if only Pods that may stay Pending or are not recreated matter
  kubectl node-maintenance plan machine workers-abcde --fail-on MayFindNoNode,MayNotFitTogether,NotRecreated

  # All Machines of a MachineDeployment, for a program
  kubectl node-maintenance plan machinedeployment workers -o json

  # With a context of a workload cluster
  kubectl node-maintenance plan node workers-abcde`,
		RunE: func(command *cobra.Command, args []string) error { return p.run(command.Context(), args) },
	}
	flags := command.Flags()
	p.addFlags(flags)
	flags.StringSliceVar(&p.ruleFiles, "rule", nil, "File with MachineDrainRules to predict with, in place of applied ones with the same name.")
	flags.StringSliceVar(&p.policyFiles, "policy", nil, "File with MachineDrainPolicies to predict with, in place of applied ones with the same name.")
	addPlacement(flags, &p.placement)
	flags.StringSliceVar(&p.failOn, "fail-on", nil, "The exit code is 1 also if there are warnings, or those of some kinds: "+strings.Join(failures, ", ")+".")
	addOutput(command, &p.output, outputJSON, outputYAML, outputWide, outputName)
	return o.completeWith(command, "machine", "node", "machinedeployment")
}

func (p *planOptions) run(ctx context.Context, args []string) error {
	targets, err := p.targets(args, "machine", "node", "machinedeployment")
	if err != nil {
		return err
	}
	if err := p.haveValues(); err != nil {
		return err
	}
	kinds, err := p.failsOn()
	if err != nil {
		return err
	}
	proposed, err := p.proposed()
	if err != nil {
		return err
	}
	connections, err := p.connect(ctx)
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
	case outputName:
		p.writeNames(plan.Names())
	default:
		report.WritePlan(p.Out, plan, p.output == outputWide, p.style())
	}
	code := plan.ExitCode()
	if len(kinds) > 0 {
		code = plan.ExitCodeOnWarnings(kinds...)
	}
	if err == nil && code != report.ExitClear {
		err = exit{code}
	}
	return err
}

// haveValues returns an error if a flag has no value, for example that of an empty variable in a script: it would have no effect.
func (p *planOptions) haveValues() error {
	for _, flag := range []struct {
		name   string
		values []string
	}{{"rule", p.ruleFiles}, {"policy", p.policyFiles}, {"fail-on", p.failOn}} {
		if flag.values != nil && len(flag.values) == 0 {
			return usagef("--%s has no value", flag.name)
		}
	}
	return nil
}

// allWarnings is the value of --fail-on for warnings of every kind.
const allWarnings = "warnings"

// failures are the values of --fail-on.
var failures = func() []string {
	values := []string{allWarnings}
	for _, kind := range forecast.WarningKinds {
		values = append(values, string(kind))
	}
	return values
}()

// failsOn returns the kinds of warnings that --fail-on names.
func (p *planOptions) failsOn() (kinds []forecast.WarningKind, _ error) {
	for _, value := range p.failOn {
		switch kind := forecast.WarningKind(value); {
		case value == allWarnings:
			kinds = append(kinds, forecast.WarningKinds...)
		case !slices.Contains(failures, value):
			return nil, usagef("--fail-on must be of %s", strings.Join(failures, ", "))
		case kind.NeedsCluster() && !p.placement:
			return nil, usagef("--fail-on %s needs --placement", value)
		default:
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// addPlacement adds the flag --placement of commands that warn.
func addPlacement(flags *pflag.FlagSet, placement *bool) {
	flags.BoolVar(placement, "placement", true, "Read all Nodes and Pods of the workload clusters, in pages, for the warnings that need them.")
}

func (p *planOptions) plan(ctx context.Context, c *observe.Connections, t targets, proposed observe.Proposed) (*report.Plan, error) {
	plan, err := p.drains(ctx, c, t, proposed)
	if err == nil {
		plan.NoteGroups(func(g report.Group) int32 {
			return c.Replicas(ctx, g.Cluster, g.Kind, types.NamespacedName{Namespace: g.Namespace, Name: g.Name})
		})
	}
	if err == nil && p.placement {
		gaps := &observe.Gaps{}
		plan.Warn(func(cluster string, nodes sets.Set[string], claims []types.NamespacedName) *forecast.Cluster {
			return c.Placement(ctx, cluster, nodes, claims, gaps)
		})
		plan.WarningGaps = gaps.List()
	}
	return plan, cmp.Or(err, ctx.Err()) // a gap after Ctrl-C is no result
}

func (p *planOptions) drains(ctx context.Context, c *observe.Connections, t targets, proposed observe.Proposed) (*report.Plan, error) {
	plan := &report.Plan{Context: contextOf(c)}
	if !c.Current.HasMachines {
		if t.kind != "node" {
			return nil, noMachines(c.Current, "; use plan node NAME")
		}
		if len(proposed.Rules)+len(proposed.Policies) > 0 {
			return nil, usagef("--rule and --policy apply to Machines, in a management cluster")
		}
		return plan, p.planNodes(ctx, c.CurrentWorkload(), t, plan)
	}
	machines, err := t.machines(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := concernsMachines(proposed, machines); err != nil {
		return nil, err
	}
	plan.Drains, err = planEach(machines, t.namesMachines(), c.Gaps, func(key types.NamespacedName) (report.Drain, error) {
		return p.planMachine(ctx, c, key, proposed)
	})
	return plan, err
}

// concernsMachines returns an error if a file has an object of a namespace in which none of the Machines is: it would have no effect.
func concernsMachines(proposed observe.Proposed, machines []types.NamespacedName) error {
	var objects []client.Object
	for i := range proposed.Rules {
		objects = append(objects, &proposed.Rules[i])
	}
	for i := range proposed.Policies {
		objects = append(objects, &proposed.Policies[i])
	}
	for _, object := range objects {
		inNamespace := func(machine types.NamespacedName) bool { return machine.Namespace == object.GetNamespace() }
		if object.GetNamespace() != "" && !slices.ContainsFunc(machines, inNamespace) {
			return usagef("%s in a file has namespace %s, in which no Machine is named", object.GetName(), object.GetNamespace())
		}
	}
	return nil
}

// planEach predicts the drains of Machines. If some of several cannot be predicted, for example because a workload cluster cannot be
// reached, that is a gap: the others are predicted. A Machine that does not exist is an error if the command line names it; else it was
// deleted meanwhile.
func planEach(machines []types.NamespacedName, named bool, gaps *observe.Gaps, plan func(types.NamespacedName) (report.Drain, error)) ([]report.Drain, error) {
	var drains []report.Drain
	var last error
	for _, key := range machines {
		drain, err := plan(key)
		switch {
		case err == nil:
			drains = append(drains, drain)
		case len(machines) == 1, named && observe.IsNoMachine(err), errors.Is(err, context.Canceled):
			return nil, err
		case observe.IsNoMachine(err):
			last = err
		default:
			last = err
			gaps.Add("Machine " + key.String() + " is not predicted: " + err.Error())
		}
	}
	if len(drains) == 0 {
		return nil, last
	}
	return drains, nil
}

func (p *planOptions) planMachine(ctx context.Context, c *observe.Connections, key types.NamespacedName, proposed observe.Proposed) (report.Drain, error) {
	machine, err := c.Current.MachineOf(ctx, key, proposed)
	if err != nil {
		return report.Drain{}, err
	}
	if err := c.FindNode(ctx, machine); err != nil {
		return report.Drain{}, err
	}
	inPlace, skip := p.inPlace && machine.DeletionTimestamp.IsZero(), machinedrain.Skip(machine.Facts)
	if inPlace {
		skip = machinedrain.SkipInPlace(machine.Facts)
	}
	if skip != machinedrain.NotSkipped {
		return report.SkippedDrain(machine, skip), nil
	}
	workload, err := c.Workload(ctx, machine.ClusterKey())
	if err != nil {
		return report.Drain{}, err
	}
	node, err := workload.NodeOf(ctx, machine)
	if err != nil {
		return report.Drain{}, err
	}
	if skip := machinedrain.SkipNode(node); node == nil || skip != machinedrain.NotSkipped && !inPlace {
		return report.SkippedDrain(machine, skip), nil
	}
	maintenances, _, err := workload.Maintenances(ctx)
	if err != nil {
		return report.Drain{}, err
	}
	now := p.clock.Now()
	intent := report.IntentOf(machine, node, maintenances, workload.SomeNodes(ctx, report.TurnNodes(machine, node, now)), now)
	intent.InPlace = inPlace
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
	nodes, err := t.nodes(ctx, w)
	if err != nil {
		return err
	}
	maintenances, _, err := w.Maintenances(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		intent := report.NodeIntentOf(node, maintenances)
		if p.configure != nil && intent.Maintenance.Name == report.ManualName(node) {
			if err := p.configure(intent.Maintenance); err != nil {
				return err
			}
		}
		observed, err := w.Forecast(ctx, intent.Maintenance, node, p.clock.Now())
		if err != nil {
			return err
		}
		plan.Drains = append(plan.Drains, report.NodeDrain(node, intent, observed))
	}
	return nil
}

// proposed reads the files of --rule and --policy.
func (p *planOptions) proposed() (proposed observe.Proposed, err error) {
	for _, file := range p.ruleFiles {
		if proposed.Rules, err = appendFrom(file, "MachineDrainRule", proposed.Rules); err != nil {
			return proposed, usage{err}
		}
	}
	for _, file := range p.policyFiles {
		if proposed.Policies, err = appendFrom(file, "MachineDrainPolicy", proposed.Policies); err != nil {
			return proposed, usage{err}
		}
	}
	return proposed, nil
}

// appendFrom appends the objects of a YAML file, which must be of one kind.
func appendFrom[T any](file, kind string, objects []T) ([]T, error) {
	content, err := os.ReadFile(file) //nolint:gosec // the file that the user names
	if err != nil {
		return nil, errors.Wrapf(err, "reading a %s", kind)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, errors.Wrapf(err, "reading %s", file)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var typed struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &typed); err != nil {
			return nil, errors.Wrapf(err, "reading %s", file)
		}
		if typed.Kind != kind {
			return nil, errors.Errorf("%s has an object of kind %q, expected %s", file, typed.Kind, kind)
		}
		var object T
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			return nil, errors.Wrapf(err, "reading a %s from %s", kind, file)
		}
		objects = append(objects, object)
	}
}
