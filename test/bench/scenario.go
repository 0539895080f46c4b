package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// scenario is something to measure.
type scenario struct {
	name, about string
	// load is what the arena starts with, and is brought back to before each run.
	load load
	// candidates take part, in this order within a round.
	candidates []candidate
	// judge says what is wrong with the samples; nothing, hopefully.
	judge func(options, []sample) []string
}

// candidate is somebody who takes part in a scenario.
type candidate struct {
	name, about string
	// runs says how often it runs.
	runs func(options) int
	// run does it once. Preparations come before the span begins.
	run func(context.Context, *arena, target) (span, error)
	// requests are those that it makes to the workload cluster.
	requests func(controlplane.Events) controlplane.Events
	// steps of a run on the way to its first eviction and after the last pod, for the breakdown; nil if it has none.
	steps func(controlplane.Events) []step
}

// span is the time that a run has taken by the candidate's own definition.
type span struct {
	started, ended time.Time
}

// runTimeout bounds one run. The slowest candidate takes a few minutes.
const runTimeout = 15 * time.Minute

// measure runs all candidates in turn: a, b, c, a, b, c, … Those that run less often come in the last rounds.
func measure(ctx context.Context, s scenario, o options) (_ []sample, err error) {
	candidates := slices.DeleteFunc(slices.Clone(s.candidates), func(c candidate) bool {
		return c.runs(o) == 0 || (o.only != "" && !slices.Contains(strings.Split(o.only, ","), c.name))
	})
	rounds := 0
	for _, c := range candidates {
		rounds = max(rounds, c.runs(o))
	}
	if rounds == 0 {
		return nil, errors.New("no candidate is left to run")
	}
	progress("%s: %s", s.name, s.about)
	a, err := newArena(ctx, s.load, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopErr := a.stop(err != nil); err == nil {
			err = stopErr
		}
	}()
	var samples []sample
	for round := range rounds {
		for _, c := range candidates {
			if round < rounds-c.runs(o) {
				continue
			}
			taken, err := runOnce(ctx, a, c)
			if err != nil {
				return nil, errors.Wrapf(err, "running %s", c.name)
			}
			samples = append(samples, taken)
			progress("%-8s run %d: %.2f s, %d evictions, %d of them refused", c.name, round+1, taken.Seconds, taken.Evictions, taken.Refused)
		}
	}
	return samples, nil
}

// runOnce resets the arena, has the candidate run in it, and takes the sample.
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
	room, err := a.watchRoom(ctx)
	if err != nil {
		return sample{}, err
	}
	taken, err := c.run(ctx, a, t)
	if err != nil {
		return sample{}, err
	}
	history := room.stop()
	// What follows a run, such as taking objects away, belongs to what it costs.
	if err := a.settle(ctx); err != nil {
		return sample{}, errors.Wrap(err, "waiting for what follows the run")
	}
	events, err := a.workload.Audit().Since(mark)
	if err != nil {
		return sample{}, err
	}
	result := newSample(c, t, taken, events, history)
	result.LoadAverage = busy
	return result, nil
}
