package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// The loads of the comparisons. A budget that allows two disruptions is the common case. The time then depends on how soon an allowed
// disruption is used.
var (
	drainLoad   = load{nodes: 10, podsPerNode: 20, drained: 1, apps: 1, maxUnavailable: 2, readyDelay: time.Second, deletionDelay: time.Second}
	podsLoad    = load{nodes: 2, podsPerNode: 110, drained: 1, apps: 1, readyDelay: time.Second, deletionDelay: time.Second}
	ordersLoad  = load{nodes: 10, podsPerNode: 20, drained: 1, apps: 5, maxUnavailable: 2, ordered: true, readyDelay: time.Second, deletionDelay: time.Second}
	volumesLoad = load{
		nodes: 10, podsPerNode: 20, drained: 1, apps: 4, maxUnavailable: 2, detachDelay: 3 * time.Second, readyDelay: time.Second, deletionDelay: time.Second,
	}
	nodesLoad   = load{nodes: 20, podsPerNode: 20, drained: 10, apps: 4, maxUnavailable: 5, readyDelay: time.Second, deletionDelay: time.Second}
	rolloutLoad = load{
		nodes: 20, podsPerNode: 20, drained: 20, apps: 4, maxUnavailable: 5, rollout: true, maxSurge: intstr.FromString("25%"), readyDelay: time.Second,
		deletionDelay: time.Second,
	}
)

// candidate is a participant of a comparison.
type candidate struct {
	name, about string
	// runs returns how often it runs.
	runs func(options) int
	// run runs it once. The span excludes preparations.
	run func(context.Context, *arena, target) (span, error)
	// requests returns its requests to the workload cluster.
	requests func(controlplane.Events) controlplane.Events
	// steps returns the steps before the first eviction and after the last Pod, for the breakdown; nil if it has none.
	steps func(controlplane.Events) []step
}

// span is the duration of a run as the candidate defines it.
type span struct {
	started, ended time.Time
}

// runTimeout limits one run. The slowest candidate takes some minutes for a Node, and more for a rollout.
const runTimeout = time.Hour

// compare returns a scenario in which candidates run the same load in turn.
func compare(name, about string, l load, candidates ...candidate) scenario {
	return scenario{name: name, about: about, measure: func(ctx context.Context, s scenario, o options) ([]outcome, error) {
		l, err := l.scaled(o)
		if err != nil {
			return nil, err
		}
		s.about += ": " + l.String()
		samples, err := measure(ctx, s, l, candidates, o)
		if err != nil {
			return nil, err
		}
		return []outcome{newResult(s, l, candidates, o, samples)}, nil
	}}
}

// measure runs all candidates in turn: a, b, c, a, b, c, … Candidates with fewer runs take part in the last rounds.
func measure(ctx context.Context, s scenario, l load, all []candidate, o options) (samples []sample, _ error) {
	candidates := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool {
		return c.runs(o) == 0 || (o.only != "" && !slices.Contains(strings.Split(o.only, ","), c.name))
	})
	rounds := 0
	for _, c := range candidates {
		rounds = max(rounds, c.runs(o))
	}
	if rounds == 0 {
		return nil, errors.New("no candidate to run")
	}
	progress("%s: %s", s.name, s.about)
	err := onArena(ctx, l, o, func(a *arena) error {
		for round := range rounds {
			for _, c := range candidates {
				if round < rounds-c.runs(o) {
					continue
				}
				taken, err := runOnce(ctx, a, c)
				if err != nil {
					return errors.Wrapf(err, "running %s", c.name)
				}
				samples = append(samples, taken)
				progress("%-8s run %d: %.2f s, %d evictions, %d of them refused", c.name, round+1, taken.Seconds, taken.Evictions, taken.Refused)
			}
		}
		return nil
	})
	return samples, err
}

// runOnce resets the arena, runs the candidate and returns the sample.
func runOnce(ctx context.Context, a *arena, c candidate) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	t, err := a.reset(ctx)
	if err != nil {
		return sample{}, errors.Wrap(err, "resetting the arena")
	}
	busy := loadAverage()
	mark, err := a.workload.Audit().Mark()
	if err != nil {
		return sample{}, err
	}
	room, err := watchRoom(ctx, a.workload.Client)
	if err != nil {
		return sample{}, err
	}
	before, err := a.serverCPU()
	if err != nil {
		return sample{}, err
	}
	taken, err := c.run(ctx, a, t)
	if err != nil {
		return sample{}, err
	}
	history := room.stop()
	// The costs include the clean-up after a run, such as the deletion of objects.
	if err := a.settle(ctx); err != nil {
		return sample{}, errors.Wrap(err, "waiting for the clean-up after the run")
	}
	after, err := a.serverCPU()
	if err != nil {
		return sample{}, err
	}
	events, err := a.workload.Audit().Since(mark)
	if err != nil {
		return sample{}, err
	}
	result := newSample(c, a.load, t, taken, events, history)
	result.CPUPerPod = float64((after - before).Milliseconds()) / float64(max(len(t.pods), 1))
	result.LoadAverage = busy
	return result, nil
}

// judge returns the defects of our samples. Seconds are a defect only with -max-ratio.
func judge(o options, l load, samples []sample) []string {
	var wrong []string
	for _, s := range samples {
		if s.Candidate != capnmCandidate.name {
			continue
		}
		if s.Refused > 0 {
			wrong = append(wrong, fmt.Sprintf("%d of our evictions were refused: %v", s.Refused, s.Answers))
		}
		// With several Nodes, a Pod may land on one that is drained later.
		if s.Evictions < s.Pods || s.Evictions > s.Pods && l.drained == 1 {
			wrong = append(wrong, fmt.Sprintf("we made %d evictions for %d Pods", s.Evictions, s.Pods))
		}
		wrong = append(wrong, s.Violations...)
	}
	if ratio := ratioOf(samples, limitCandidate); o.maxRatio > 0 && ratio > o.maxRatio {
		wrong = append(wrong, fmt.Sprintf("we took %.2f times the limit, more than %.2f", ratio, o.maxRatio))
	}
	return wrong
}

// ratioOf returns our time as a multiple of that of a limit, or 0 if one of the two did not run.
func ratioOf(samples []sample, of candidate) float64 {
	limit := median(values(samples, of.name, func(s sample) float64 { return s.Seconds }))
	if limit == 0 {
		return 0
	}
	return median(values(samples, capnmCandidate.name, func(s sample) float64 { return s.Seconds })) / limit
}
