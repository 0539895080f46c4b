package command

import (
	"context"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// whyOptions are the flags of the command why.
type whyOptions struct {
	*options

	cluster   string
	placement bool
	output    output
	gaps      observe.Gaps // of what only warnings depend on
}

func newWhy(o *options) *cobra.Command {
	y := &whyOptions{options: o}
	command := &cobra.Command{
		Use:   "why machine|node|pod NAME",
		Short: "Explain where a drain stands and what it waits for",
		Long: `Explain where a drain stands, which Pods block it, since when and on what. For a Pod: the result of every drain rule and the part of the
rule that decided, its place in the plan, its PodDisruptionBudgets, evacuators and evictions. Nothing is written.`,
		Example: `  # Why is this Machine still there?
  kubectl node-maintenance why machine workers-abcde

  # Why is this Pod still there? With a context of the workload cluster, or of the management cluster:
  kubectl node-maintenance why pod web-0 -n shop
  kubectl node-maintenance why pod web-0 -n shop --workload-cluster default/prod`,
		RunE: func(command *cobra.Command, args []string) error { return y.run(command.Context(), args) },
	}
	command.Flags().StringVar(&y.cluster, "workload-cluster", "", "Cluster of a Pod, as NAMESPACE/NAME, with a context of a management cluster.")
	addPlacement(command.Flags(), &y.placement)
	addOutput(command, &y.output, outputJSON, outputYAML)
	return o.completeWith(command, "machine", "node", "pod")
}

func (y *whyOptions) run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return usagef("name one object, as in: pod NAME")
	}
	kind, err := kindOf(args[0], "machine", "node", "pod")
	if err != nil {
		return err
	}
	switch {
	case y.cluster != "" && kind != "pod":
		return usagef("--workload-cluster is for Pods")
	case y.cluster != "" && !strings.Contains(y.cluster, "/"):
		return usagef("--workload-cluster needs a namespace, as in: --workload-cluster default/%s", y.cluster)
	}
	namespace, err := y.namespace()
	if err != nil {
		return err
	}
	connections, err := y.connect(ctx)
	if err != nil {
		return err
	}
	why, err := y.explain(ctx, connections, kind, types.NamespacedName{Namespace: namespace, Name: args[1]})
	if err != nil {
		return err
	}
	if y.output != outputText {
		return y.write(y.output, why)
	}
	report.WriteWhy(y.Out, why, y.clock.Now(), y.style())
	return nil
}

func (y *whyOptions) explain(ctx context.Context, c *observe.Connections, kind string, key types.NamespacedName) (*report.Why, error) {
	why, err := y.explainObject(ctx, c, kind, key)
	if err != nil {
		return nil, err
	}
	why.Gaps, why.WarningGaps, why.Context = c.Gaps.List(), y.gaps.List(), contextOf(c)
	return why, ctx.Err() // a gap after Ctrl-C is no result
}

func (y *whyOptions) explainObject(ctx context.Context, c *observe.Connections, kind string, key types.NamespacedName) (*report.Why, error) {
	switch {
	case kind == "machine" && !c.Current.HasMachines:
		return nil, noMachines(c.Current, "; use why node NAME")
	case kind == "machine":
		return y.explainMachine(ctx, c, key)
	case kind == "node" && c.Current.HasMachines:
		machine, err := machineOfNode(ctx, c.Current, key.Namespace, key.Name)
		if err != nil {
			return nil, err
		}
		return y.explainMachine(ctx, c, machine)
	case kind == "node":
		return y.explainNode(ctx, c, key.Name)
	default:
		return y.explainPod(ctx, c, key)
	}
}

// unread turns an error of what is read after the subject of the explanation into a gap: the rest is explained. Only Ctrl-C ends the
// command.
func unread(c *observe.Connections, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	c.Gaps.Add(err.Error())
	return nil
}

// seeDrain reads the drain of a Node, and what the drain depends on. machine is that of the Node, nil if it has none or that is not known.
func (y *whyOptions) seeDrain(ctx context.Context, w *observe.Workload, machine *observe.Machine, node *corev1.Node) (report.Seen, error) {
	maintenances, _, err := w.Maintenances(ctx)
	if err != nil {
		return report.Seen{Node: node, Unread: true}, err
	}
	intent := report.NodeIntentOf(node, maintenances)
	if machine != nil {
		intent = report.IntentOf(machine, node, maintenances, nil, y.clock.Now())
	}
	seen := report.Seen{Node: node, Maintenances: maintenances, Intent: &intent, Unread: w.MaintenancesUnread()}
	observed, err := w.Forecast(ctx, intent.Maintenance, node, y.clock.Now())
	if err == nil {
		observed.Then = intent.Then
		seen.Observed = &observed
	}
	return seen, err
}

// seePlacement reads what warnings about Pods of a Node depend on, nil if there is nothing to warn of or it is not to be read.
func (y *whyOptions) seePlacement(ctx context.Context, w *observe.Workload, o *forecast.Observation, concerns func(forecast.Pod) bool) *forecast.Cluster {
	if o == nil || !y.placement {
		return nil
	}
	predicted := forecast.Of(*o)
	predicted.Pods = slices.DeleteFunc(predicted.Pods, func(p forecast.Pod) bool { return !concerns(p) })
	if !predicted.NeedsCluster() {
		return nil
	}
	return w.Placement(ctx, sets.New(forecast.NodesOf(*o)...), predicted.Claims(), &y.gaps)
}

// seeNode is seeDrain for all Pods of a Node, with what warnings about its drain depend on.
func (y *whyOptions) seeNode(ctx context.Context, w *observe.Workload, machine *observe.Machine, node *corev1.Node) (report.Seen, error) {
	seen, err := y.seeDrain(ctx, w, machine, node)
	if err == nil && seen.Intent.Drains() {
		seen.Cluster = y.seePlacement(ctx, w, seen.Observed, func(forecast.Pod) bool { return true })
	}
	return seen, err
}

func (y *whyOptions) explainMachine(ctx context.Context, c *observe.Connections, key types.NamespacedName) (*report.Why, error) {
	machine, err := c.Current.MachineOf(ctx, key, observe.Proposed{})
	if machine == nil {
		return nil, err
	}
	seen := report.Seen{Unread: true}
	if err == nil {
		seen, err = y.seeMachine(ctx, c, machine)
	}
	if err != nil {
		err = unread(c, err)
	}
	return report.MachineWhy(machine, seen), err
}

// seeMachine reads what the workload cluster of a Machine has about its drain.
func (y *whyOptions) seeMachine(ctx context.Context, c *observe.Connections, machine *observe.Machine) (report.Seen, error) {
	if err := c.FindNode(ctx, machine); err != nil {
		return report.Seen{Unread: true}, err
	}
	skips := machinedrain.HasHook(machine.Machine) && !machine.DeletionTimestamp.IsZero()
	if skip := machinedrain.Skip(machine.Facts); skip != machinedrain.NotSkipped && skips || !machine.Status.NodeRef.IsDefined() {
		return report.Seen{Skip: skip}, nil
	}
	w, err := c.Workload(ctx, machine.ClusterKey())
	if err != nil {
		return report.Seen{Unread: true}, err
	}
	node, err := w.NodeOf(ctx, machine)
	if err != nil {
		return report.Seen{Unread: true}, err
	}
	if skip := machinedrain.SkipNode(node); node == nil || skip != machinedrain.NotSkipped && !machine.DeletionTimestamp.IsZero() {
		return report.Seen{Skip: skip}, nil
	}
	return y.seeNode(ctx, w, machine, node)
}

func (y *whyOptions) explainNode(ctx context.Context, c *observe.Connections, name string) (*report.Why, error) {
	w := c.CurrentWorkload()
	node, err := w.Node(ctx, name)
	if err != nil {
		return nil, err
	}
	if node == nil {
		return nil, errors.Errorf("there is no Node %s in %s", name, w.Name)
	}
	seen, err := y.seeNode(ctx, w, nil, node)
	if err != nil {
		err = unread(c, err)
	}
	return report.NodeWhy(seen), err
}

func (y *whyOptions) explainPod(ctx context.Context, c *observe.Connections, key types.NamespacedName) (*report.Why, error) {
	w, cluster, err := y.workload(ctx, c)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := w.In(key.Namespace).Get(ctx, key, pod); err != nil {
		return nil, errors.Wrapf(err, "getting Pod %s of %s", key, w.Name)
	}
	if pod.Spec.NodeName == "" {
		return &report.Why{Subject: "Pod " + key.String(), Answer: "The Pod is not scheduled to a Node, so no drain concerns it."}, nil
	}
	node, err := w.Node(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	if node == nil {
		return &report.Why{Subject: "Pod " + key.String(), Answer: "The Node of the Pod does not exist. Kubernetes garbage-collects the Pod."}, nil
	}
	seen, err := y.seeDrainOf(ctx, c, w, cluster, node)
	if err != nil {
		return nil, err
	}
	seen.Cluster = y.seePlacement(ctx, w, seen.Observed, func(p forecast.Pod) bool { return p.Namespace == key.Namespace && p.Name == key.Name })
	why, found := report.ExplainPod(key.Namespace, key.Name, seen)
	if !found {
		return nil, errors.Errorf("Pod %s was deleted meanwhile", key)
	}
	return why, nil
}

// seeDrainOf reads the drain of a Node: that of its Machine, with a context of the management cluster.
func (y *whyOptions) seeDrainOf(
	ctx context.Context, c *observe.Connections, w *observe.Workload, cluster types.NamespacedName, node *corev1.Node,
) (report.Seen, error) {
	if cluster.Name == "" {
		return y.seeDrain(ctx, w, nil, node)
	}
	machine, err := machineOf(ctx, c.Current, cluster, node)
	if err != nil { // the rules of the Machine are not known
		if err := unread(c, err); err != nil {
			return report.Seen{}, err
		}
		machine = nil
	}
	return y.seeDrain(ctx, w, machine, node)
}

// machineOf reads the Machine of a Node of a Cluster, nil if it has none. Where the Node was not read, the Machines name their Nodes.
func machineOf(ctx context.Context, c *observe.Cluster, cluster types.NamespacedName, node *corev1.Node) (*observe.Machine, error) {
	key := types.NamespacedName{Namespace: cluster.Namespace, Name: node.Annotations[clusterv1.MachineAnnotation]}
	if observe.IsUnread(node) {
		var err error
		if key, err = machineOfNode(ctx, c, cluster.Namespace, node.Name, client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}); err != nil {
			return nil, err
		}
	}
	if key.Name == "" {
		return nil, nil
	}
	return c.MachineOf(ctx, key, observe.Proposed{})
}

// workload returns the workload cluster of a Pod, and its Cluster if the context is that of a management cluster.
func (y *whyOptions) workload(ctx context.Context, c *observe.Connections) (*observe.Workload, types.NamespacedName, error) {
	var cluster types.NamespacedName
	switch {
	case !c.Current.HasMachines && y.cluster != "":
		return nil, cluster, usagef("--workload-cluster is for a context of a management cluster, without --as-workload")
	case !c.Current.HasMachines:
		return c.CurrentWorkload(), cluster, nil
	}
	namespace, name, found := strings.Cut(y.cluster, "/")
	if cluster = (types.NamespacedName{Namespace: namespace, Name: name}); !found {
		list := &clusterv1.ClusterList{}
		if err := c.Current.List(ctx, list); err != nil {
			return nil, cluster, errors.Wrap(err, "listing Clusters")
		}
		if len(list.Items) != 1 {
			return nil, cluster, usagef(
				"%s has %d Clusters: pass --workload-cluster NAMESPACE/NAME, or --as-workload for its own Pods", c.Current.Name, len(list.Items))
		}
		cluster = client.ObjectKeyFromObject(&list.Items[0])
	}
	w, err := c.Workload(ctx, cluster)
	return w, cluster, err
}

// machineOfNode returns the Machine of a Node.
func machineOfNode(ctx context.Context, c *observe.Cluster, namespace, node string, options ...client.ListOption) (types.NamespacedName, error) {
	machines, err := c.Machines(ctx, namespace, options...)
	if err != nil {
		return types.NamespacedName{}, err
	}
	for i := range machines {
		if machines[i].Status.NodeRef.Name == node {
			return client.ObjectKeyFromObject(&machines[i]), nil
		}
	}
	return types.NamespacedName{}, noMachineOfNode(c, namespace, node)
}
