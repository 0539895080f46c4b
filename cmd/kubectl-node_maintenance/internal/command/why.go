package command

import (
	"context"
	"strings"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

	cluster string
	output  output
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
  kubectl node-maintenance why pod web-0 -n shop --cluster default/prod`,
		RunE: func(command *cobra.Command, args []string) error { return y.run(command.Context(), args) },
	}
	command.Flags().StringVar(&y.cluster, "cluster", "", "Cluster of a Pod, as NAMESPACE/NAME, with a context of a management cluster.")
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
	if y.cluster != "" && !strings.Contains(y.cluster, "/") {
		return usagef("--cluster needs a namespace, as in: --cluster default/%s", y.cluster)
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
	why.Gaps, why.Context = connections.Gaps.List(), contextOf(connections)
	if y.output != outputText {
		return y.write(y.output, why)
	}
	report.WriteWhy(y.Out, why, y.clock.Now(), y.style())
	return nil
}

func (y *whyOptions) explain(ctx context.Context, c *observe.Connections, kind string, key types.NamespacedName) (*report.Why, error) {
	switch {
	case kind == "machine" && !c.Current.HasMachines:
		return nil, errors.Errorf("%s is not a management cluster: it serves no Machines; use why node NAME", c.Current.Name)
	case kind == "machine":
		return y.explainMachine(ctx, c, key)
	case kind == "node" && c.Current.HasMachines:
		machine, err := machineOfNode(ctx, c.Current, key.Namespace, key.Name)
		if err != nil {
			return nil, err
		}
		return y.explainMachine(ctx, c, machine)
	case kind == "node":
		return y.explainNode(ctx, c.CurrentWorkload(), key.Name)
	default:
		return y.explainPod(ctx, c, key)
	}
}

// drain is what is known of the drain of a Node.
type drain struct {
	intent   report.Intent
	observed forecast.Observation
}

func (y *whyOptions) machineDrain(ctx context.Context, w *observe.Workload, machine *observe.Machine, node *corev1.Node) (*drain, error) {
	maintenances, _, err := w.Maintenances(ctx)
	if err != nil {
		return nil, err
	}
	d := &drain{intent: report.IntentOf(machine, node, maintenances, nil, y.clock.Now())}
	d.observed, err = w.Forecast(ctx, d.intent.Maintenance, node, y.clock.Now())
	d.observed.Then = d.intent.Then
	return d, err
}

func (y *whyOptions) nodeDrain(ctx context.Context, w *observe.Workload, node *corev1.Node) (*drain, error) {
	maintenances, _, err := w.Maintenances(ctx)
	if err != nil {
		return nil, err
	}
	d := &drain{intent: report.NodeIntentOf(node, maintenances)}
	d.observed, err = w.Forecast(ctx, d.intent.Maintenance, node, y.clock.Now())
	return d, err
}

func (y *whyOptions) explainMachine(ctx context.Context, c *observe.Connections, key types.NamespacedName) (*report.Why, error) {
	machine, err := c.Current.MachineOf(ctx, key, observe.Proposed{})
	if err != nil {
		return nil, err
	}
	if skip := machinedrain.Skip(machine.Facts); skip != machinedrain.NotSkipped && machinedrain.HasHook(machine.Machine) || !machine.Status.NodeRef.IsDefined() {
		return report.MachineWhy(machine, nil, nil, nil, nil, skip), nil
	}
	w, err := c.Workload(ctx, machine.ClusterKey())
	if err != nil {
		return nil, err
	}
	node, err := w.Node(ctx, machine.Status.NodeRef.Name)
	if err != nil {
		return nil, err
	}
	if skip := machinedrain.SkipNode(node); node == nil || skip != machinedrain.NotSkipped && !machine.DeletionTimestamp.IsZero() {
		return report.MachineWhy(machine, nil, nil, nil, nil, skip), nil
	}
	d, err := y.machineDrain(ctx, w, machine, node)
	if err != nil {
		return nil, err
	}
	maintenances, _, err := w.Maintenances(ctx)
	return report.MachineWhy(machine, node, maintenances, &d.intent, &d.observed, machinedrain.NotSkipped), err
}

func (y *whyOptions) explainNode(ctx context.Context, w *observe.Workload, name string) (*report.Why, error) {
	node, err := w.Node(ctx, name)
	if err != nil {
		return nil, err
	}
	if node == nil {
		return nil, errors.Errorf("there is no Node %s in %s", name, w.Name)
	}
	d, err := y.nodeDrain(ctx, w, node)
	if err != nil {
		return nil, err
	}
	maintenances, _, err := w.Maintenances(ctx)
	return report.NodeWhy(node, maintenances, &d.intent, &d.observed), err
}

func (y *whyOptions) explainPod(ctx context.Context, c *observe.Connections, key types.NamespacedName) (*report.Why, error) {
	w, cluster, err := y.workload(ctx, c)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := w.Get(ctx, key, pod); err != nil {
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
	d, err := y.drainOf(ctx, c, w, cluster, node)
	if err != nil {
		return nil, err
	}
	why, found := report.ExplainPod(key.Namespace, key.Name, d.intent, d.observed)
	if !found {
		return nil, errors.Errorf("Pod %s was deleted meanwhile", key)
	}
	return why, nil
}

// drainOf returns the drain of a Node: that of its Machine, with a context of the management cluster.
func (y *whyOptions) drainOf(ctx context.Context, c *observe.Connections, w *observe.Workload, cluster types.NamespacedName, node *corev1.Node) (*drain, error) {
	name := node.Annotations[clusterv1.MachineAnnotation]
	if cluster.Name == "" || name == "" {
		return y.nodeDrain(ctx, w, node)
	}
	machine, err := c.Current.MachineOf(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: name}, observe.Proposed{})
	if err != nil {
		return nil, err
	}
	return y.machineDrain(ctx, w, machine, node)
}

// workload returns the workload cluster of a Pod, and its Cluster if the context is that of a management cluster.
func (y *whyOptions) workload(ctx context.Context, c *observe.Connections) (*observe.Workload, types.NamespacedName, error) {
	var cluster types.NamespacedName
	if !c.Current.HasMachines {
		return c.CurrentWorkload(), cluster, nil
	}
	namespace, name, found := strings.Cut(y.cluster, "/")
	if cluster = (types.NamespacedName{Namespace: namespace, Name: name}); !found {
		list := &clusterv1.ClusterList{}
		if err := c.Current.List(ctx, list); err != nil {
			return nil, cluster, errors.Wrap(err, "listing Clusters")
		}
		if len(list.Items) != 1 {
			return nil, cluster, usagef("%s has %d Clusters: pass --cluster NAMESPACE/NAME", c.Current.Name, len(list.Items))
		}
		cluster = client.ObjectKeyFromObject(&list.Items[0])
	}
	w, err := c.Workload(ctx, cluster)
	return w, cluster, err
}

// machineOfNode returns the Machine of a Node.
func machineOfNode(ctx context.Context, c *observe.Cluster, namespace, node string) (types.NamespacedName, error) {
	machines, err := c.Machines(ctx, namespace)
	if err != nil {
		return types.NamespacedName{}, err
	}
	for i := range machines {
		if machines[i].Status.NodeRef.Name == node {
			return client.ObjectKeyFromObject(&machines[i]), nil
		}
	}
	return types.NamespacedName{}, errors.Errorf("no Machine of Node %s in namespace %s of %s", node, namespace, c.Name)
}
