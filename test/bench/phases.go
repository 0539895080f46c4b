package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/clusterapi"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// phase is a measurement on a connected, idle crowd.
type phase func(ctx context.Context, c *crowd, f *figures) error

// measureMemory compares the memory of the managers with all Clusters connected and without any.
func measureMemory(ctx context.Context, c *crowd, f *figures) error {
	ours, err := c.ours.memory(ctx)
	if err != nil {
		return err
	}
	core, err := c.core.memory(ctx)
	if err != nil {
		return err
	}
	f.add("clusters", c.size.clusters, "connected")
	f.add("rss_mb", ours.rss, "resident memory of our manager")
	f.add("rss_mb_without_clusters", c.oursEmpty.rss, "the same before there was a Cluster")
	f.add("rss_mb_per_idle_cluster", c.perCluster(ours.rss, c.oursEmpty.rss), "as soon as all are connected")
	f.add("live_mb_per_idle_cluster", c.perCluster(ours.live, c.oursEmpty.live), "heap and stacks after a garbage collection")
	_, workloads, err := c.since(c.empty)
	if err != nil {
		return err
	}
	watched, listed := sets.New[string](), workloads.WithUserAgent(fleet.ManagerAgent).Verb("list").Resource("nodes")
	for _, watch := range workloads.WithUserAgent(fleet.ManagerAgent).Verb("watch") {
		watched.Insert(tenantOf(watch) + " " + watch.Resource)
	}
	unselective := listed.Where(func(e controlplane.Event) bool { return !strings.Contains(e.URI, "spec.unschedulable") })
	f.add("watches_per_idle_cluster", float64(watched.Len())/float64(c.size.clusters), "since the manager has connected")
	f.add("lists_of_nodes", len(unselective), "other than of cordoned Nodes")
	f.add("capi_rss_mb_per_idle_cluster", c.perCluster(core.rss, c.coreEmpty.rss), "Cluster API's core manager in the same run")
	f.add("capi_live_mb_per_idle_cluster", c.perCluster(core.live, c.coreEmpty.live), "")
	return c.ours.saveProfiles(ctx, c.profiles, "heap", "goroutine")
}

func (c *crowd) perCluster(now, empty float64) float64 {
	return (now - empty) / float64(c.size.clusters)
}

// measureRest counts the requests of an idle fleet.
func measureRest(ctx context.Context, c *crowd, f *figures) error {
	progress("observing the idle fleet for %s", c.size.rest)
	before, err := c.mark()
	if err != nil {
		return err
	}
	cpu, err := c.cpuOf(c.ours, c.core)
	if err != nil {
		return err
	}
	if err := pause(ctx, c.size.rest); err != nil {
		return err
	}
	after, err := c.cpuOf(c.ours, c.core)
	if err != nil {
		return err
	}
	ours, err := c.ours.rss()
	if err != nil {
		return err
	}
	core, err := c.core.rss()
	if err != nil {
		return err
	}
	management, workloads, err := c.since(before)
	if err != nil {
		return err
	}
	peers := len(management.By(clusterapi.User).Writes()) + len(workloads.WithUserAgent(fleet.CoreAgent).Writes())
	management, workloads = management.By(fleet.ManagerUser), workloads.WithUserAgent(fleet.ManagerAgent)
	written := append(management.Writes(), workloads.Writes()...)
	watches := append(management.Verb("watch"), workloads.Verb("watch")...)
	read := append(management.Verb("get", "list"), workloads.Verb("get", "list")...)
	share := func(i int) float64 { return (after[i] - cpu[i]).Seconds() / c.size.rest.Seconds() }
	f.add("idle_seconds", c.size.rest.Seconds(), "of observing the idle fleet")
	f.add("writes", len(written), "by our manager, to all API servers")
	isCheck := func(e controlplane.Event) bool {
		return e.Verb == "get" && strings.HasSuffix(e.URI, "?resourceVersion=0")
	}
	f.add("checks", len(read.Where(isCheck)), "of the metadata of an object that our manager has installed, from the watch cache")
	read = read.Where(func(e controlplane.Event) bool { return !isCheck(e) })
	f.add("reads", len(read), "of objects, without health probes and checks")
	f.add("watches", len(watches), "restarted")
	f.add("cpu_share", share(0), "of one core, our manager")
	f.add("cpu_milliseconds_per_cluster_and_minute", share(0)*60000/float64(c.size.clusters), "")
	f.add("capi_cpu_share", share(1), "of one core, Cluster API's core manager")
	f.add("rss_mb_per_rested_cluster", c.perCluster(ours, c.oursEmpty.rss), "resident memory afterwards, our manager")
	f.add("capi_rss_mb_per_rested_cluster", c.perCluster(core, c.coreEmpty.rss), "")
	f.add("capi_writes", peers, "by Cluster API's core manager")
	f.promise(len(written) == 0, "an idle fleet is written to %d times:\n%s", len(written), written)
	// A new connection reads all Nodes once, some minutes later.
	f.promise(len(read) <= c.size.clusters, "an idle fleet is read %d times:\n%s", len(read), shown(read))
	return nil
}

// shown returns as many events as a report prints.
func shown(events controlplane.Events) controlplane.Events {
	return events[:min(20, len(events))]
}

func (c *crowd) cpuOf(programs ...program) ([]time.Duration, error) {
	used := make([]time.Duration, len(programs))
	for i, p := range programs {
		var err error
		if used[i], err = p.cpu(); err != nil {
			return nil, err
		}
	}
	return used, nil
}

// measureDrains drains many clusters concurrently, while others are unreachable.
func measureDrains(ctx context.Context, c *crowd, f *figures) error {
	group, lost := c.group(0), c.lost()
	if err := c.runPods(ctx, append(slices.Clone(group), lost...)); err != nil {
		return err
	}
	begin, err := c.mark()
	if err != nil {
		return err
	}
	watches, err := c.watchRooms(ctx)
	if err != nil {
		return err
	}
	for _, tenant := range lost {
		tenant.Cut()
	}
	progress("draining %d clusters concurrently, %d more are unreachable", len(group), len(lost))
	released, started, err := c.drain(ctx, group, lost)
	if err != nil {
		return err
	}
	seen := stopAll(watches)
	_, events, err := c.since(begin)
	if err != nil {
		return err
	}
	for _, tenant := range lost {
		tenant.Restore()
	}
	c.reportDrains(f, group, events, seen)
	var seconds []float64
	for _, at := range released {
		seconds = append(seconds, at.Sub(started).Seconds())
	}
	f.add("unreachable_clusters", len(lost), "drained as well")
	f.add("drain_seconds_median", median(seconds), "from the Machine's deletion to the release of the hook")
	f.add("drain_seconds_max", slices.Max(seconds), "")
	metrics, err := c.Manager.Metrics(ctx)
	if err != nil {
		return err
	}
	const reaction = "capnm_eviction_reaction_seconds"
	f.add("reactions", metrics.Sum(reaction, nil), "events of budgets that allowed a disruption for which Pods waited")
	addDecisions(f, metrics)
	f.add("share_of_reactions_within_50_ms", metrics.ShareWithin(reaction, 0.05), "from the event, as received, to the eviction request, as sent")
	progress("waiting for the clusters that were unreachable")
	return c.awaitReleased(ctx, lost)
}

// measurePlain drains Nodes whose Pods are evicted at once, and counts what all users write for that until nothing is left of it.
func measurePlain(ctx context.Context, c *crowd, f *figures) error {
	group := c.group(1)
	if err := c.runPlainPods(ctx, group); err != nil {
		return err
	}
	if err := c.awaitCleanUp(ctx); err != nil { // of the phases before
		return err
	}
	begin, err := c.mark()
	if err != nil {
		return err
	}
	progress("draining %d nodes with %d pods each", len(group), plainPods)
	if _, _, err := c.drain(ctx, group, nil); err != nil {
		return err
	}
	if err := c.awaitCleanUp(ctx); err != nil {
		return err
	}
	_, events, err := c.since(begin)
	if err != nil {
		return err
	}
	pods, writes := len(group)*plainPods, maintenanceWrites(events)
	f.add("plain_pods", pods, "evicted at once, without budgets")
	f.add("writes_per_plain_pod", float64(len(writes))/float64(pods), "by all users, events excluded: "+tally(writes))
	evicted := len(events.Verb("create").Resource("pods", "eviction").Succeeded())
	f.promise(evicted == pods, "%d evictions for %d pods without budgets", evicted, pods)
	return nil
}

// maintenanceWrites returns what was written for maintenances by all users, such as the garbage collector, and what our manager has written
// otherwise.
func maintenanceWrites(events controlplane.Events) controlplane.Events {
	return events.Writes().Where(func(e controlplane.Event) bool {
		ours := strings.HasPrefix(e.UserAgent, fleet.ManagerAgent) && e.Resource != "events"
		return ours || e.Group == v1alpha1.GroupVersion.Group || e.Resource == "pods" && e.Subresource == "eviction"
	})
}

// tally counts requests by verb and resource.
func tally(events controlplane.Events) string {
	counts := map[string]int{}
	for _, event := range events {
		counts[describe(event)]++
	}
	kinds := make([]string, 0, len(counts))
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	return strings.Join(kinds, ", ")
}

func stopAll(watches []*roomWatch) []rooms {
	var all []rooms
	for _, w := range watches {
		all = append(all, w.stop())
	}
	return all
}

// reportDrains reports the cost of a group's drains, and how soon allowed disruptions were used.
func (c *crowd) reportDrains(f *figures, group []tenant, events controlplane.Events, seen []rooms) {
	names := sets.New[string]()
	for _, t := range group {
		names.Insert(t.Name)
	}
	requests := events.WithUserAgent(fleet.ManagerAgent).Where(func(e controlplane.Event) bool { return names.Has(tenantOf(e)) })
	evictions := requests.Verb("create").Resource("pods", "eviction")
	var waits []float64
	for _, each := range seen {
		maps.DeleteFunc(each, func(budget objectKey, _ []roomAt) bool { return !names.Has(budget.Namespace) })
		for _, stretch := range unusedIn(each, evictions) {
			if stretch.round {
				waits = append(waits, float64(stretch.length.Milliseconds()))
			}
		}
	}
	writes := requests.Writes().Where(func(e controlplane.Event) bool { return e.Resource != "events" })
	pods := len(group) * c.size.pods
	perPod := func(events controlplane.Events) float64 { return float64(len(events)) / float64(pods) }
	f.add("drains", len(group), "at once")
	f.add("pods", pods, "evicted, under a budget of one for each cluster")
	f.add("evictions", len(evictions), "")
	f.add("refused", len(evictions.Failed()), "")
	f.add("calls_per_pod", perPod(requests), "to the workload clusters, including reads and watches")
	f.add("writes_per_pod", perPod(writes), "to the workload clusters, without events")
	f.add("p50_room_to_eviction_ms", quantile(waits, 0.5), "from an allowed disruption to the next eviction")
	f.add("p99_room_to_eviction_ms", quantile(waits, 0.99), "")
	f.add("rooms", len(waits), "times that a disruption was allowed and no eviction in flight")
	f.promise(len(evictions.Succeeded()) == pods, "%d evictions for %d pods", len(evictions.Succeeded()), pods)
	for _, refused := range shown(evictions.Failed()) {
		progress("refused: %s", refused)
	}
}

// measureRestart kills our manager while many clusters are drained, and starts it again.
func measureRestart(ctx context.Context, c *crowd, f *figures) error {
	group := c.group(1)
	if err := c.runPods(ctx, group); err != nil {
		return err
	}
	begin, err := c.mark()
	if err != nil {
		return err
	}
	finished := make(chan error, 1)
	go func() {
		_, _, err := c.drain(ctx, group, nil)
		finished <- err
	}()
	if _, err := c.awaitEvictions(ctx, begin, group); err != nil {
		return err
	}
	c.KillManager()
	restart, err := c.mark()
	if err != nil {
		return err
	}
	started := time.Now()
	if err := c.StartManager(ctx); err != nil {
		return err
	}
	c.ours = programOf(c.Manager)
	progress("our manager was killed and is ready again")
	moving, err := c.awaitEvictions(ctx, restart, group)
	if err != nil {
		return err
	}
	var seconds []float64
	for _, at := range moving {
		seconds = append(seconds, at.Sub(started).Seconds())
	}
	if err := <-finished; err != nil {
		return err
	}
	f.add("clusters", c.size.clusters, "connected")
	f.add("drains", len(group), "running")
	f.add("seconds_until_all_move", slices.Max(seconds), "from the start of the new process to the next eviction in the last of these clusters")
	f.add("seconds_until_half_move", median(seconds), "")
	return c.reportRestart(f, begin, restart)
}

// reportRestart reports the cost of the restart.
func (c *crowd) reportRestart(f *figures, begin, restart marks) error {
	management, workloads, err := c.since(restart)
	if err != nil {
		return err
	}
	_, all, err := c.since(begin)
	if err != nil {
		return err
	}
	evictions := all.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction")
	f.add("peak_management_requests_per_second", peakRate(management.By(fleet.ManagerUser)), "by our manager, to the management API server, including watches")
	f.add("management_requests", len(management.By(fleet.ManagerUser)), "until the last drain was over")
	f.add("peak_workload_requests_per_second", peakRate(workloads.WithUserAgent(fleet.ManagerAgent)), "to all workload API servers")
	f.add("evictions", len(evictions), "")
	f.add("refused", len(evictions.Failed()), "an eviction that was in flight when the manager was killed may be repeated")
	for _, refused := range shown(evictions.Failed()) {
		progress("refused: %s", refused)
	}
	return nil
}

// peakRate returns the highest number of requests within a second of the clock.
func peakRate(events controlplane.Events) int {
	perSecond, peak := map[int64]int{}, 0
	for _, event := range events {
		second := event.Requested.Unix()
		perSecond[second]++
		peak = max(peak, perSecond[second])
	}
	return peak
}
