package command

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
)

// selection is the flag -l of commands for several Machines or Nodes.
type selection struct {
	*options

	selector string
}

func (s *selection) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&s.selector, "selector", "l", "", "Select Machines or Nodes by label instead of by name.")
}

// targets are the objects that a command line names.
type targets struct {
	kind      string
	namespace string
	names     []string
	selector  labels.Selector
}

func (s *selection) targets(args []string, kinds ...string) (targets, error) {
	if len(args) == 0 {
		return targets{}, usagef("name a kind and objects, as in: machine NAME")
	}
	t := targets{}
	for _, name := range args[1:] {
		if !slices.Contains(t.names, name) {
			t.names = append(t.names, name)
		}
	}
	var err error
	if t.kind, err = kindOf(args[0], kinds...); err != nil {
		return t, err
	}
	if t.selector, err = labels.Parse(s.selector); err != nil {
		return t, usagef("invalid selector: %v", err)
	}
	switch named, selected := len(t.names) > 0, s.selector != ""; {
	case named && selected:
		return t, usagef("name objects or select them with -l, not both")
	case !named && !selected:
		return t, usagef("name a %s, or select objects with -l", t.kind)
	}
	t.namespace, err = s.namespace()
	return t, err
}

// nameFor returns the name by which the command line names a Machine: its own name, or that of its Node, MachineDeployment or Cluster.
func nameFor(kind string, machine *clusterv1.Machine) string {
	switch kind {
	case "cluster":
		return machine.Spec.ClusterName
	case "node":
		return machine.Status.NodeRef.Name
	case "machinedeployment":
		return machine.Labels[clusterv1.MachineDeploymentNameLabel]
	default:
		return machine.Name
	}
}

// namesMachines reports whether the command line names each Machine.
func (t targets) namesMachines() bool { return t.kind == "machine" && len(t.names) > 0 }

// selects reports whether the command line selects an object, by its name or else by its labels.
func (t targets) selects(name string, objectLabels map[string]string) bool {
	if len(t.names) > 0 {
		return slices.Contains(t.names, name)
	}
	return t.selector.Matches(labels.Set(objectLabels))
}

// machines returns the Machines that the command line names. A Node names its Machine.
func (t targets) machines(ctx context.Context, c *observe.Connections) ([]types.NamespacedName, error) {
	var keys []types.NamespacedName
	if t.namesMachines() {
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
		name := nameFor(t.kind, machine)
		found[name] = true
		if name != "" && t.selects(name, machine.Labels) {
			keys = append(keys, client.ObjectKeyFromObject(machine))
		}
	}
	for _, wanted := range t.names {
		if !found[wanted] {
			if t.kind == "node" {
				return nil, noMachineOfNode(c.Current, t.namespace, wanted)
			}
			return nil, errors.Errorf("no Machine of MachineDeployment %s in namespace %s", wanted, t.namespace)
		}
	}
	if len(keys) == 0 {
		return nil, errors.Errorf("no Machine matches in namespace %s", t.namespace)
	}
	return keys, nil
}

// nodes returns the Nodes of a workload cluster that the command line names.
func (t targets) nodes(ctx context.Context, w *observe.Workload) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	if len(t.names) == 0 {
		all, err := w.Nodes(ctx)
		if err != nil {
			return nil, err
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
			return nil, err
		}
		if node == nil {
			return nil, errors.Errorf("there is no Node %s in %s", name, w.Name)
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return nil, errors.Errorf("no Node matches in %s", w.Name)
	}
	return nodes, nil
}
