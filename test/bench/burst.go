package main

import (
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// burstLoad is a workload cluster whose Machines are all deleted at once. There are no budgets: the burst measures the rate of
// evictions.
var burstLoad = load{nodes: 500, podsPerNode: 15, drained: 500, apps: 15, landings: 10, readyDelay: time.Second, deletionDelay: time.Second}

// givenBack is when memory is measured after the burst. The garbage collector runs at least every two minutes and returns free memory
// to the system gradually.
const givenBack = 3 * time.Minute

func measureBurst(ctx context.Context, a *arena, f *figures, o options) error {
	f.add("manager_flags", o.managerFlags, "in addition to the defaults")
	f.add("nodes", a.load.drained, "whose Machines are deleted at once")
	f.add("pods", a.load.drained*a.load.podsPerNode, "on them")
	limit, err := a.burstOfLoops(ctx)
	if err != nil {
		return errors.Wrap(err, "running the bare loops")
	}
	f.add("limit_evictions_per_second", limit, "by 20 parallel bare loops")
	ours, err := a.burstOfOurs(ctx, f)
	if err != nil {
		return errors.Wrap(err, "deleting the Machines")
	}
	f.add("capnm_evictions_per_second", ours, "from the first eviction to the last")
	if limit > 0 {
		f.add("rate_over_limit", ours/limit, "")
	}
	return nil
}

// burstOfLoops returns the rate of the limit.
func (a *arena) burstOfLoops(ctx context.Context) (float64, error) {
	t, err := a.reset(ctx)
	if err != nil {
		return 0, err
	}
	progress("starting the bare loops")
	mark, err := a.workload.Audit().Mark()
	if err != nil {
		return 0, err
	}
	if _, err := drainByBareLoops(ctx, a, t); err != nil {
		return 0, err
	}
	events, err := a.workload.Audit().Since(mark)
	if err != nil {
		return 0, err
	}
	rate := evictionRate(limitCandidate.requests(events))
	progress("the bare loops evicted %.1f Pods a second", rate)
	return rate, nil
}

// burstOfOurs returns our rate.
func (a *arena) burstOfOurs(ctx context.Context, f *figures) (float64, error) {
	t, err := a.reset(ctx)
	if err != nil {
		return 0, err
	}
	if err := a.manage(ctx, t.nodes); err != nil {
		return 0, err
	}
	ours := programOf(a.Manager)
	before, err := ours.memory(ctx)
	if err != nil {
		return 0, err
	}
	progress("starting our burst")
	mark, err := a.workload.Audit().Mark()
	if err != nil {
		return 0, err
	}
	peak := ours.watchPeak(ctx)
	taken, released, err := a.deleteMachines(ctx, t.nodes, &clusterv1.MachineList{}, isReleased)
	if err != nil {
		return 0, err
	}
	f.add("peak_rss_mb", peak.stop(), "of our manager")
	events, err := a.workload.Audit().Since(mark)
	if err != nil {
		return 0, err
	}
	requests := capnmCandidate.requests(events)
	evictions := requests.Verb("create").Resource("pods", "eviction")
	var seconds []float64
	for _, at := range released {
		seconds = append(seconds, at.Sub(taken.started).Seconds())
	}
	f.add("seconds", taken.ended.Sub(taken.started).Seconds(), "from the first deletion to the last release")
	f.add("median_node_seconds", median(seconds), "from the first deletion to the release of a node's hook")
	f.add("slowest_over_median", slices.Max(seconds)/median(seconds), "")
	f.add("evictions", len(evictions), "")
	f.add("refused", len(evictions.Failed()), "")
	f.add("calls_per_pod", float64(len(requests))/float64(len(t.pods)), "to the workload cluster")
	f.add("writes_per_pod", float64(len(requests.Writes()))/float64(len(t.pods)), "to the workload cluster")
	f.promise(len(evictions.Failed()) == 0, "%d evictions were refused:\n%s", len(evictions.Failed()), shown(evictions.Failed()))
	progress("waiting for memory to be released")
	if err := pause(ctx, givenBack); err != nil {
		return 0, err
	}
	after, err := ours.memory(ctx)
	if err != nil {
		return 0, err
	}
	f.add("rss_mb_before", before.rss, "")
	f.add("rss_mb_after", after.rss, "three minutes later")
	f.add("live_mb_before", before.live, "heap and stacks after a garbage collection")
	f.add("live_mb_after", after.live, "")
	return evictionRate(requests), nil
}

// evictionRate returns the evictions a second, from the first to the last.
func evictionRate(requests controlplane.Events) float64 {
	evictions := requests.Verb("create").Resource("pods", "eviction").Succeeded()
	if len(evictions) < 2 {
		return 0
	}
	end := slices.MaxFunc(evictions, func(a, b controlplane.Event) int { return a.Answered.Compare(b.Answered) }).Answered
	return float64(len(evictions)) / end.Sub(slices.MinFunc(evictions, byRequest).Requested).Seconds()
}

func byRequest(a, b controlplane.Event) int { return a.Requested.Compare(b.Requested) }
