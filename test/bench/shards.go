package main

import (
	"context"
	"maps"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// shardsSize is small: the scenario only shows that each manager handles its half, and nothing else.
var shardsSize = crowdSize{clusters: 20, hosts: 1, drained: 6, pods: 5}

// shardNames are the names of the halves: of the namespace, of the value for --watch-filter, and of the manager's user.
var shardNames = []string{"shard-a", "shard-b"}

// shardings are the flags by which two managers divide the Clusters. Each is tested with drains in other Clusters.
var shardings = []struct{ by, flag string }{{"watch_filter", "--watch-filter="}, {"namespace", "--namespace="}}

var shardsScenario = scenario{
	name: "shards", about: "two concurrent managers, each with its own half",
	measure: func(ctx context.Context, s scenario, o options) ([]outcome, error) {
		size, err := shardsSize.scaled(o)
		if err != nil {
			return nil, err
		}
		f := &figures{name: s.name, about: s.about + "; " + size.String()}
		progress("%s: %s", f.name, f.about)
		return []outcome{f}, measureShards(ctx, f, size, o)
	},
}

func measureShards(ctx context.Context, f *figures, size crowdSize, o options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := newCrowd(ctx, size, o, false)
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := c.stop(err != nil); err == nil {
			err = stopErr
		}
	}()
	for _, shard := range shardNames {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shard}}
		if err := kwok.Create(ctx, c.Client, []client.Object{namespace}); err != nil {
			return err
		}
		if err := c.createPolicy(ctx, shard); err != nil {
			return err
		}
	}
	if err := c.fill(ctx, 2*size.drained, inShards); err != nil {
		return err
	}
	f.add("clusters", size.clusters, "half of them in each shard")
	for i, sharding := range shardings {
		if err := c.shareBy(ctx, f, sharding.by, sharding.flag, c.group(i), (2-i)*size.drained); err != nil {
			return errors.Wrapf(err, "sharding by %s", sharding.by)
		}
	}
	return nil
}

// inShards assigns Clusters to the shards alternately, by namespace and by a label on all objects.
func inShards(i int, cluster kwok.Cluster) (kwok.Cluster, []kwok.Change) {
	shard := shardNames[i%len(shardNames)]
	label := func(object client.Object) {
		labels := maps.Clone(object.GetLabels())
		labels[clusterv1.WatchLabel] = shard
		object.SetLabels(labels)
	}
	return cluster.InNamespace(shard), []kwok.Change{label}
}

// shareBy runs a manager for each shard, drains a group, and checks which manager did what.
func (c *crowd) shareBy(ctx context.Context, f *figures, by, flag string, group []tenant, machines int) error {
	begin, err := c.mark()
	if err != nil {
		return err
	}
	connected := map[program]int{}
	var managers []*fleet.Manager
	for _, shard := range shardNames {
		manager, err := c.RunManager(ctx, shard, shard, flag+shard)
		if err != nil {
			return err
		}
		managers = append(managers, manager)
		connected[programOf(manager)] = c.size.clusters / len(shardNames)
	}
	if err := c.awaitConnections(ctx, connected); err != nil {
		return err
	}
	if err := c.awaitMachines(ctx, machines); err != nil {
		return err
	}
	if err := c.runPods(ctx, group); err != nil {
		return err
	}
	progress("draining %d clusters, sharded by %s", len(group), by)
	if _, _, err := c.drain(ctx, group, nil); err != nil {
		return err
	}
	if err := c.reportShards(ctx, f, by, begin, len(group), managers); err != nil {
		return err
	}
	for _, manager := range managers {
		if err := manager.Stop(); err != nil {
			return err
		}
	}
	return nil
}

func (c *crowd) reportShards(ctx context.Context, f *figures, by string, begin marks, drains int, managers []*fleet.Manager) error {
	management, workloads, err := c.since(begin)
	if err != nil {
		return err
	}
	var served []sets.Set[string]
	for i, manager := range managers {
		shard := shardNames[i]
		names, err := connectedTo(ctx, manager)
		if err != nil {
			return err
		}
		served = append(served, names)
		// With labels, both managers may serve Machines of one policy. Its status counts all of them, and both write the same.
		elsewhere := management.By(shard).Writes().Where(func(e controlplane.Event) bool {
			return e.Namespace != "" && e.Namespace != shard && e.Resource != "machinedrainpolicies"
		})
		f.add(by+"_"+shard+"_clusters", names.Len(), "connected to this manager")
		f.promise(len(elsewhere) == 0, "the manager of %s writes to other Clusters:\n%s", shard, elsewhere)
	}
	both := served[0].Intersection(served[1])
	evictions := workloads.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction")
	f.add(by+"_clusters_of_both", both.Len(), "")
	f.add(by+"_drains", drains, "")
	f.add(by+"_evictions", len(evictions), "")
	f.promise(both.Len() == 0, "both managers serve %v", slices.Sorted(maps.Keys(both)))
	f.promise(len(evictions) == drains*c.size.pods && len(evictions.Failed()) == 0, "sharded by %s: %d evictions for %d pods, %d of them refused", by, len(evictions), drains*c.size.pods, len(evictions.Failed()))
	return nil
}

// connectedTo returns the Clusters that a manager is connected to.
func connectedTo(ctx context.Context, m *fleet.Manager) (sets.Set[string], error) {
	metrics, err := m.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	names := sets.New[string]()
	for _, metric := range metrics["capi_cluster_cache_connection_up"].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if metric.GetGauge().GetValue() == 1 {
			names.Insert(labels["cluster_namespace"] + "/" + labels["cluster_name"])
		}
	}
	return names, nil
}
