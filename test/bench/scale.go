package main

import (
	"context"
	"strings"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fleetSize is that of a large installation, as far as one machine can play it.
var fleetSize = crowdSize{clusters: 500, hosts: 3, drained: 100, pods: 20, unreachable: 10, rest: 5 * time.Minute}

// scaleFiles are what is measured on one crowd.
var scaleFiles = map[string]string{
	"fleet":   "many idle clusters, and drains in some of them while others can't be reached",
	"idle":    "the cost of nothing",
	"restart": "the manager is killed and starts again, while drains run",
}

// scalePhases come one after the other, each for one of the files. Those that need rest come first.
var scalePhases = []struct {
	file    string
	measure phase
}{{"fleet", measureMemory}, {"idle", measureRest}, {"fleet", measureDrains}, {"restart", measureRestart}}

// atScale makes the scenario that measures for some of the files, on one crowd: it takes minutes to come up.
func atScale(name, about string, files ...string) scenario {
	return scenario{name: name, about: about, measure: func(ctx context.Context, s scenario, o options) ([]outcome, error) {
		size, err := fleetSize.scaled(o)
		if err != nil {
			return nil, err
		}
		progress("%s: %s; %s", s.name, s.about, size)
		var all []outcome
		byFile := map[string]*figures{}
		for _, file := range files {
			byFile[file] = &figures{name: file, about: scaleFiles[file] + "; " + size.String()}
			all = append(all, byFile[file])
		}
		err = onCrowd(ctx, size, o, func(c *crowd) error {
			for _, phase := range scalePhases {
				if f := byFile[phase.file]; f != nil {
					if err := phase.measure(ctx, c, f); err != nil {
						return errors.Wrapf(err, "measuring for %s", phase.file)
					}
				}
			}
			return nil
		})
		for _, f := range byFile {
			f.judgeScale()
		}
		return all, err
	}}
}

// onCrowd does something with a crowd that is connected and rests.
func onCrowd(ctx context.Context, size crowdSize, o options, do func(*crowd) error) error {
	c, err := startCrowd(ctx, size, o)
	if err != nil {
		return err
	}
	err = do(c)
	if stopErr := c.stop(err != nil); err == nil {
		err = stopErr
	}
	return err
}

// startCrowd starts a fleet with all Clusters connected and at rest.
func startCrowd(ctx context.Context, size crowdSize, o options) (_ *crowd, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := newCrowd(ctx, size, o, true)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.stop(true)
		}
	}()
	if err := c.createPolicy(ctx, metav1.NamespaceDefault); err != nil {
		return nil, err
	}
	machines := 2*size.drained + size.unreachable
	if err := c.fill(ctx, machines, nil); err != nil {
		return nil, err
	}
	if err := c.awaitConnections(ctx, map[program]int{c.ours: size.clusters, c.core: size.clusters}); err != nil {
		return nil, err
	}
	progress("all Clusters are connected")
	if err := c.awaitMachines(ctx, machines); err != nil {
		return nil, err
	}
	progress("%d Machines run", machines)
	return c, pause(ctx, settling)
}

// The goals of scale that don't depend on how fast the machine is are promises of the phases; these are those that do, or that
// only a large fleet shows. They are told, and fail nothing.
var scaleGoals = []struct {
	key  string
	most float64
}{
	{"rss_mb_per_idle_cluster", 1},
	{"refused", 0},
	{"p99_room_to_eviction_ms", 300},
	{"seconds_until_all_move", 30},
}

// judgeScale says which goals were missed.
func (f *figures) judgeScale() {
	var missed []string
	for _, goal := range scaleGoals {
		if value, measured := f.number(goal.key); measured && value > goal.most {
			missed = append(missed, goal.key)
		}
	}
	f.add("goals_missed", append([]string{}, missed...), strings.Join(missed, ", "))
}
