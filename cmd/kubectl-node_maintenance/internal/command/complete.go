package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinedeployments,verbs=list,roleName=capnm-plugin-management-reader

// Completer is the name of the program that kubectl runs to complete the arguments of this plugin. A link of this name to the plugin
// suffices.
const Completer = "kubectl_complete-node_maintenance"

// The limits of a completion: the user waits for it at each press of the key.
const (
	completionTimeout = 3 * time.Second
	maxCompletions    = 500
)

// completeWith lets a command complete a kind and names of this kind.
func (o *options) completeWith(command *cobra.Command, kinds ...string) *cobra.Command {
	command.ValidArgsFunction = func(command *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return kinds, cobra.ShellCompDirectiveNoFileComp
		}
		kind, err := kindOf(args[0], kinds...)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := o.completions(command.Context(), prefix, func(ctx context.Context, c *observe.Connections, namespace string) ([]string, error) {
			return names(ctx, c.Current, kind, namespace)
		})
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args[1:], name) }), cobra.ShellCompDirectiveNoFileComp
	}
	return command
}

// completeFlags registers the completion of flags of all commands.
func (o *options) completeFlags(root *cobra.Command) {
	complete := func(flag string, values func(ctx context.Context, prefix string) []string) {
		_ = root.RegisterFlagCompletionFunc(flag, func(command *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return values(command.Context(), prefix), cobra.ShellCompDirectiveNoFileComp
		})
	}
	complete("namespace", func(ctx context.Context, prefix string) []string {
		return o.completions(ctx, prefix, func(ctx context.Context, c *observe.Connections, _ string) ([]string, error) {
			return listNames(ctx, c.Current, corev1.SchemeGroupVersion.WithKind("Namespace"), "")
		})
	})
	complete("context", func(_ context.Context, prefix string) []string {
		raw, err := o.config.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil
		}
		var contexts []string
		for name := range raw.Contexts {
			contexts = append(contexts, name)
		}
		return completable(contexts, prefix)
	})
}

// completions reads names from the cluster of the context. It returns nothing if the cluster cannot be read: a
// completion has no place for errors.
func (o *options) completions(ctx context.Context, prefix string, read func(context.Context, *observe.Connections, string) ([]string, error)) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	if o.config.Timeout != nil && *o.config.Timeout == "0" {
		*o.config.Timeout = completionTimeout.String()
	}
	namespace, err := o.namespace()
	if err != nil {
		return nil
	}
	c, err := o.connect(ctx)
	if err != nil {
		return nil
	}
	found, err := read(ctx, c, namespace)
	if err != nil {
		return nil
	}
	return completable(found, prefix)
}

// completable returns the names that start with a prefix, sorted. It leaves out names that a shell could interpret.
func completable(names []string, prefix string) []string {
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, prefix) || strings.ContainsFunc(name, func(r rune) bool { return !isPlain(r) })
	})
	slices.Sort(names)
	return slices.Compact(names)
}

func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.@:/+", r)
}

// names returns the names of objects of a kind. In a management cluster, the Nodes are those of Machines.
func names(ctx context.Context, c *observe.Cluster, kind, namespace string) ([]string, error) {
	switch {
	case kind == "pod":
		return listNames(ctx, c, corev1.SchemeGroupVersion.WithKind("Pod"), namespace)
	case kind == "node" && !c.HasMachines:
		return listNames(ctx, c, corev1.SchemeGroupVersion.WithKind("Node"), "")
	case kind == "node":
		machines, err := c.Machines(ctx, namespace)
		var names []string
		for i := range machines {
			names = append(names, machines[i].Status.NodeRef.Name)
		}
		return slices.DeleteFunc(names, func(name string) bool { return name == "" }), err
	case kind == "machine":
		return listNames(ctx, c, clusterv1.GroupVersion.WithKind("Machine"), namespace)
	case kind == "machinedeployment":
		return listNames(ctx, c, clusterv1.GroupVersion.WithKind("MachineDeployment"), namespace)
	default:
		return listNames(ctx, c, clusterv1.GroupVersion.WithKind("Cluster"), namespace)
	}
}

// listNames lists the metadata of objects.
func listNames(ctx context.Context, c client.Client, kind schema.GroupVersionKind, namespace string) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := c.List(ctx, list, client.InNamespace(namespace), client.Limit(maxCompletions)); err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
