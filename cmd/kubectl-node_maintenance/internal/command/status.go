package command

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// statusOptions are the flags of the command status.
type statusOptions struct {
	*options

	allNamespaces bool
	watch         bool
	record        string
	placement     bool
	output        output
}

func newStatus(o *options) *cobra.Command {
	s := &statusOptions{options: o}
	command := &cobra.Command{
		Use:   "status [cluster|machinedeployment|machine|node NAME]",
		Short: "Show all drains and what each of them waits for",
		Long: `Show all drains: Clusters, their MachineDeployments and control planes, the Machines that are being deleted or maintained, their
NodeMaintenances, the Pods that block them, and for a day what became of the Pods that drains have evicted. With a context of a workload
cluster, show its NodeMaintenances. Nothing is written.

With --watch, show them live, with all Pods that are evacuated, and progress since the start of each drain. Without a terminal, --watch
writes a line for each change. --record also writes the drains to a file, up to 64 MiB, without a terminal as well.`,
		Example: `  # All drains of the management cluster
  kubectl node-maintenance status -A

  # Those of one MachineDeployment
  kubectl node-maintenance status machinedeployment workers

  # All drains, live
  kubectl node-maintenance status -A --watch

  # Record a rollout for the command report
  kubectl node-maintenance status -A --watch --record rollout.jsonl`,
		RunE: func(command *cobra.Command, args []string) error { return s.run(command.Context(), args) },
	}
	command.Flags().BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "Show the Clusters of all namespaces.")
	command.Flags().BoolVarP(&s.watch, "watch", "w", false, "Show the drains live, until q or Ctrl-C.")
	command.Flags().StringVar(&s.record, "record", "", "With --watch, record the drains in this file, for the command report. The file must not exist.")
	command.Flags().BoolVar(&s.placement, "placement", true,
		"With --watch, read all Nodes and Pods of a workload cluster, in pages, for the warnings about an object that Enter explains.")
	addOutput(command, &s.output, outputJSON, outputYAML, outputWide, outputName)
	return o.completeWith(command, "cluster", "machinedeployment", "machine", "node")
}

func (s *statusOptions) run(ctx context.Context, args []string) error {
	kind, name := "", ""
	if len(args) > 0 {
		if len(args) != 2 {
			return usagef("name one object, as in: machine NAME")
		}
		var err error
		if kind, err = kindOf(args[0], "cluster", "machinedeployment", "machine", "node"); err != nil {
			return err
		}
		name = args[1]
	}
	if s.record != "" && !s.watch {
		return usagef("--record needs --watch")
	}
	if s.watch && s.output != outputText {
		return usagef("--watch and -o cannot be combined")
	}
	connections, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if s.watch {
		return s.follow(ctx, connections, kind, name)
	}
	status, err := s.status(ctx, connections, kind, name)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // a gap after Ctrl-C is no result
		return ctx.Err()
	}
	status.Gaps = connections.Gaps.List()
	switch s.output {
	case outputJSON, outputYAML:
		return s.write(s.output, status)
	case outputName:
		s.writeNames(status.Names())
	default:
		report.WriteStatus(s.Out, status, s.output == outputWide, s.clock.Now(), s.style())
	}
	return nil
}

func (s *statusOptions) status(ctx context.Context, c *observe.Connections, kind, name string) (*report.Status, error) {
	if !c.Current.HasMachines {
		if err := workloadHas(c, kind); err != nil {
			return nil, err
		}
		drains, err := s.drainsOf(ctx, c.CurrentWorkload())
		return workloadStatus(c, name, drains), err
	}
	namespace, err := s.machineNamespace()
	if err != nil {
		return nil, err
	}
	machines, err := c.Current.Machines(ctx, namespace)
	if err != nil {
		return nil, err
	}
	ended := endedDrains(c.Current.Policies(ctx, namespace), kind, name, nil)
	status := managementStatus(c, machines, kind, name, func(clusters []types.NamespacedName) []report.Drains {
		return inParallel(clusters, func(cluster types.NamespacedName) report.Drains { return s.drainsOfCluster(ctx, c, cluster) })
	})
	status.AddEnded(ended)
	if kind != "" && len(status.Clusters) == 0 {
		return nil, errors.Errorf("no Machine matches %s %s", kind, name)
	}
	return status, nil
}

// endedDrains returns the drains in the status of policies that the command line selects, and those of known Machines. They do not name the
// MachineDeployment of the Machine.
func endedDrains(policies []v1alpha1.MachineDrainPolicy, kind, name string, known sets.Set[string]) []outcome.Ended {
	return slices.DeleteFunc(outcome.EndedOf(policies), func(e outcome.Ended) bool {
		switch kind {
		case "":
			return false
		case "cluster":
			return e.Cluster != name
		case "machine":
			return e.Machine != name
		case "node":
			return e.Node != name
		default:
			return !known.Has(e.MachineName())
		}
	})
}

// contextOf describes the cluster of the context: its role and its name.
func contextOf(c *observe.Connections) string {
	if c.Current.HasMachines {
		return "management cluster, " + c.Current.Name
	}
	return "workload cluster, " + c.Current.Name
}

// machineNamespace returns the namespace whose Machines are shown, empty for all.
func (s *statusOptions) machineNamespace() (string, error) {
	if s.allNamespaces {
		return metav1.NamespaceAll, nil
	}
	return s.namespace()
}

// parallelClusters is how many workload clusters are read concurrently: each may not answer for half a minute.
const parallelClusters = 32

// inParallel returns what read returns for each workload cluster.
func inParallel(clusters []types.NamespacedName, read func(types.NamespacedName) report.Drains) []report.Drains {
	drains := make([]report.Drains, len(clusters))
	var group errgroup.Group
	group.SetLimit(parallelClusters)
	for i, cluster := range clusters {
		group.Go(func() error {
			drains[i] = read(cluster)
			return nil
		})
	}
	_ = group.Wait()
	return drains
}

// managementStatus returns the status of those Machines that the command line selects. drainsOf returns what is known of workload clusters.
func managementStatus(
	c *observe.Connections, all []clusterv1.Machine, kind, name string, drainsOf func(clusters []types.NamespacedName) []report.Drains,
) *report.Status {
	var machines []clusterv1.Machine
	var clusters []types.NamespacedName
	known := sets.New[types.NamespacedName]()
	for i := range all {
		m := &all[i]
		if !concerns(m, kind, name) {
			continue
		}
		machines = append(machines, *m)
		if cluster := clusterOf(m); report.IsMaintained(m) && !known.Has(cluster) {
			known.Insert(cluster)
			clusters = append(clusters, cluster)
		}
	}
	drains := map[string]report.Drains{}
	for i, each := range drainsOf(clusters) {
		drains[clusters[i].String()] = each
	}
	return &report.Status{Context: contextOf(c), Clusters: report.StatusOf(machines, drains)}
}

// drainsOfCluster returns what is known of a workload cluster. If it cannot be reached, that is a gap: the other clusters are shown.
func (s *statusOptions) drainsOfCluster(ctx context.Context, c *observe.Connections, cluster types.NamespacedName) report.Drains {
	w, err := c.Workload(ctx, cluster)
	if err != nil {
		c.Gaps.Add(err.Error())
		return report.Drains{}
	}
	drains, err := s.drainsOf(ctx, w)
	if err != nil {
		c.Gaps.Add(err.Error())
	}
	return drains
}

// drainsOf reads the NodeMaintenances of a workload cluster, and the Evacuations where the output has each Pod.
func (s *statusOptions) drainsOf(ctx context.Context, w *observe.Workload) (report.Drains, error) {
	if s.output != outputWide {
		maintenances, err := w.MaintenancesOnly(ctx)
		return report.Drains{Maintenances: maintenances}, err
	}
	maintenances, evacuations, err := w.Maintenances(ctx)
	return report.Drains{Maintenances: maintenances, Evacuations: evacuations}, err
}

// concerns reports whether the object that the command line names is the Machine or an owner of it.
func concerns(m *clusterv1.Machine, kind, name string) bool {
	return kind == "" || nameFor(kind, m) == name
}

// workloadHas returns an error if a workload cluster has no objects of a kind.
func workloadHas(c *observe.Connections, kind string) error {
	if kind != "" && kind != "node" {
		return noMachines(c.Current, "")
	}
	return nil
}

// workloadStatus returns the status of a workload cluster, or of one of its Nodes.
func workloadStatus(c *observe.Connections, node string, drains report.Drains) *report.Status {
	return &report.Status{Context: contextOf(c), Maintenances: report.MaintenancesOf(drains, node)}
}
