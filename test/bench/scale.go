package main

import (
	"context"
	"strings"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok"
)

// fleetSize is the size of a large installation that one machine can simulate.
var fleetSize = crowdSize{clusters: 500, hosts: 3, drained: 100, pods: 20, unreachable: 10, rest: 5 * time.Minute}

// scaleFiles describes the result files of one crowd.
var scaleFiles = map[string]string{
	"fleet":   "many idle clusters, and drains in some of them while others are unreachable",
	"idle":    "the cost of an idle fleet",
	"restart": "the manager is killed and started again during drains",
}

// scalePhases run one after the other, each for one of the files. Those that need an idle fleet come first.
var scalePhases = []struct {
	file    string
	measure phase
}{{"fleet", measureMemory}, {"idle", measureRest}, {"fleet", measureDrains}, {"restart", measureRestart}}

// atScale returns a scenario for some of the files on one crowd, which takes minutes to start.
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

// onCrowd calls do with a connected, idle crowd.
func onCrowd(ctx context.Context, size crowdSize, o options, do func(*crowd) error) error {
	c, err := startCrowd(ctx, size, o)
	return on(c, err, do)
}

// startCrowd starts a fleet with all Clusters connected and idle.
func startCrowd(ctx context.Context, size crowdSize, o options) (_ *crowd, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := newCrowd(ctx, size, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.stop(true)
		}
	}()
	policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: policyName}}
	if err := kwok.Create(ctx, c.Client, []client.Object{policy}); err != nil {
		return nil, err
	}
	machines := 2*size.drained + size.unreachable
	if err := c.fill(ctx, machines); err != nil {
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

// The phases fail for missed goals that do not depend on the machine. These goals depend on it, or only a large fleet shows them. They
// are reported and are no failures.
var scaleGoals = []struct {
	key  string
	most float64
}{
	{"rss_mb_per_idle_cluster", 1},
	{"refused", 0},
	{"p99_room_to_eviction_ms", 300},
	{"seconds_until_all_move", 30},
}

// judgeScale records the missed goals.
func (f *figures) judgeScale() {
	var missed []string
	for _, goal := range scaleGoals {
		if value, measured := f.number(goal.key); measured && value > goal.most {
			missed = append(missed, goal.key)
		}
	}
	f.add("goals_missed", append([]string{}, missed...), strings.Join(missed, ", "))
}
