package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pkg/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
	"github.com/capnm/cluster-api-node-maintenance/test/tenants"
)

// crowdSize is the number of Clusters, and how they are used.
type crowdSize struct {
	// clusters is the total number of Clusters, hosts the number of their API servers.
	clusters, hosts int
	// idleNodes is the number of additional Nodes of each Cluster, without Machines and Pods.
	idleNodes int
	// drained is the number of concurrent drains, pods the number of Pods of each. Each phase drains other Clusters.
	drained, pods int
	// unreachable is the number of additional Clusters that are drained while the network to them is cut.
	unreachable int
	// rest is how long the idle fleet is observed.
	rest time.Duration
}

func (s crowdSize) scaled(o options) (crowdSize, error) {
	for _, change := range []struct {
		to *int
		by int
	}{{&s.clusters, o.clusters}, {&s.idleNodes, o.idleNodes}, {&s.hosts, o.hosts}, {&s.drained, o.drained}, {&s.pods, o.podsPerNode}} {
		if change.by > 0 {
			*change.to = change.by
		}
	}
	if o.unreachable >= 0 {
		s.unreachable = o.unreachable
	}
	if o.rest > 0 {
		s.rest = o.rest
	}
	if 2*s.drained+s.unreachable > s.clusters {
		return s, errors.Errorf("%d clusters are too few for two times %d drains and %d unreachable ones", s.clusters, s.drained, s.unreachable)
	}
	return s, nil
}

func (s crowdSize) String() string {
	return fmt.Sprintf("%d Clusters of %d Nodes on %d API servers, each with a separate client certificate", s.clusters, 1+s.idleNodes, s.hosts)
}

// crowd is a fleet with many Clusters on few API servers.
type crowd struct {
	*fleet.Fleet
	size crowdSize
	// profiles is the directory for memory profiles of our manager, or "" for none.
	profiles string
	hosts    []*tenants.Host
	tenants  []*tenants.Tenant
	// core and ours are the managers.
	core, ours program
	// Their memory without any Cluster.
	coreEmpty, oursEmpty memory
	// empty is the position in the audit logs before there was a Cluster.
	empty marks
}

const (
	// landingsPerHost is the number of Nodes for the Pods of drained Nodes.
	landingsPerHost = 4
	// podReadyDelay and podDeletionDelay of the crowd's Pods.
	podReadyDelay, podDeletionDelay = time.Second, time.Second
	// settling is the pause after all Clusters have been connected, before measurements start.
	settling = 20 * time.Second
)

// newCrowd starts a fleet without Clusters.
func newCrowd(ctx context.Context, size crowdSize, o options) (_ *crowd, err error) {
	profiler, err := fleet.FreeAddress()
	if err != nil {
		return nil, err
	}
	options := fleet.Options{
		PodReadyDelay: podReadyDelay, PodDeletionDelay: podDeletionDelay, ReleasePace: true, KeepDir: o.keep,
		ManagerArgs: o.managerArgs(), CoreArgs: []string{"--profiler-address=" + profiler},
		Progress: func(what string) { progress("%s", what) },
	}
	for i := range size.hosts {
		options.Workloads = append(options.Workloads, fmt.Sprintf("host-%d", i))
	}
	f, err := fleet.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	c := &crowd{Fleet: f, size: size, profiles: o.profiles}
	defer func() {
		if err != nil {
			_ = c.stop(true)
		}
	}()
	for _, name := range options.Workloads {
		if err := c.addHost(ctx, f.Workloads[name]); err != nil {
			return nil, err
		}
	}
	c.core = program{pid: f.Core.PID(), metrics: f.Core.MetricsURL(), profileURL: "http://" + profiler + "/debug/pprof/"}
	if c.coreEmpty, err = c.core.memory(ctx); err != nil {
		return nil, err
	}
	c.ours = programOf(f.Manager)
	if c.oursEmpty, err = c.ours.memory(ctx); err != nil {
		return nil, err
	}
	c.empty, err = c.mark()
	return c, err
}

func programOf(m *fleet.Manager) program {
	return program{pid: m.PID(), metrics: m.MetricsURL(), profileURL: m.ProfilerURL()}
}

func (c *crowd) addHost(ctx context.Context, w *fleet.Workload) error {
	host, err := tenants.NewHost(w.ControlPlane)
	if err != nil {
		return err
	}
	c.hosts = append(c.hosts, host)
	for i := range landingsPerHost {
		node := controlplane.NewNode(fmt.Sprintf("%s%d", landingPrefix, i))
		node.Labels[tenants.Label] = landingLabel
		node.Spec.Unschedulable = true
		if err := kwok.Create(ctx, w.Client, []client.Object{node}); err != nil {
			return err
		}
	}
	return nil
}

// fill adds the Clusters. The first ones have a Machine.
func (c *crowd) fill(ctx context.Context, machines int) error {
	for i := range c.size.clusters {
		if err := c.addTenant(ctx, i, kwok.NewCluster(fmt.Sprintf("t%04d", i)).WithExternalControlPlane(), i < machines); err != nil {
			return err
		}
	}
	progress("%d Clusters are created", c.size.clusters)
	return nil
}

func (c *crowd) addTenant(ctx context.Context, i int, cluster kwok.Cluster, machine bool) error {
	host := c.hosts[i%len(c.hosts)]
	tenant, err := host.Add(ctx, c.Workloads[host.Name()].Client, cluster)
	if err != nil {
		return err
	}
	c.tenants = append(c.tenants, tenant)
	for n := range c.size.idleNodes {
		if err := tenant.AddIdleNode(ctx, c.Workloads[host.Name()].Client, fmt.Sprintf("%s-%03d", tenant.Name, n)); err != nil {
			return err
		}
	}
	if i >= 2*c.size.drained && i < 2*c.size.drained+c.size.unreachable {
		if err := tenant.BehindLink(); err != nil {
			return err
		}
	}
	workload, err := tenant.Workload()
	if err != nil {
		return err
	}
	c.ConnectOver(cluster, workload)
	objects := [][]client.Object{cluster.Objects()}
	if machine {
		objects = append(objects, cluster.Machine(tenant.Name))
	}
	return kwok.Create(ctx, c.Client, objects...)
}

// awaitConnections waits until each manager is connected to the given number of Clusters.
func (c *crowd) awaitConnections(ctx context.Context, wanted map[program]int) error {
	return poll(ctx, "for all Clusters to be connected", func(ctx context.Context) (bool, error) {
		for manager, count := range wanted {
			metrics, err := fleet.Scrape(ctx, manager.metrics)
			if err != nil {
				return false, err
			}
			if int(metrics.Sum("capi_cluster_cache_connection_up", nil)) != count {
				return false, pause(ctx, time.Second)
			}
		}
		return true, nil
	})
}

// awaitMachines waits until count Machines run and have our hook.
func (c *crowd) awaitMachines(ctx context.Context, count int) error {
	return poll(ctx, fmt.Sprintf("for %d Machines to run, with our hook", count), func(ctx context.Context) (bool, error) {
		list := &clusterv1.MachineList{}
		if err := c.Client.List(ctx, list); err != nil {
			return false, errors.Wrap(err, "listing Machines")
		}
		ready := len(slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool {
			return m.Status.Phase != string(clusterv1.MachinePhaseRunning) || !machinedrain.HasHook(&m)
		}))
		if ready == count {
			return true, nil
		}
		return false, pause(ctx, time.Second)
	})
}

// stop stops the fleet.
func (c *crowd) stop(failed bool) error {
	if failed && c.Manager != nil {
		progress("our manager's log ends with:\n%s", c.Manager.LogTail(40))
	}
	err := c.Stop()
	for _, host := range c.hosts {
		if stopErr := host.Stop(); err == nil {
			err = stopErr
		}
	}
	return err
}

// marks are positions in all audit logs.
type marks struct {
	management controlplane.Mark
	hosts      []controlplane.Mark
}

func (c *crowd) mark() (m marks, err error) {
	if m.management, err = c.Management.Audit().Mark(); err != nil {
		return m, err
	}
	for _, host := range c.hosts {
		at, err := host.Audit().Mark()
		if err != nil {
			return m, err
		}
		m.hosts = append(m.hosts, at)
	}
	return m, nil
}

// since returns the events of the management cluster, and those of all workload clusters.
func (c *crowd) since(m marks) (management, workloads controlplane.Events, err error) {
	if management, err = c.Management.Audit().Since(m.management); err != nil {
		return nil, nil, err
	}
	for i, host := range c.hosts {
		events, err := host.Audit().Since(m.hosts[i])
		if err != nil {
			return nil, nil, err
		}
		workloads = append(workloads, events...)
	}
	return management, workloads, nil
}
