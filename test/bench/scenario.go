package main

import (
	"context"
	"io"
)

// scenario is a named measurement.
type scenario struct {
	name, about string
	// measure runs it.
	measure func(ctx context.Context, s scenario, o options) ([]outcome, error)
}

// outcome is the result of a scenario.
type outcome interface {
	// title returns the name of its file.
	title() string
	// print writes it as text.
	print(w io.Writer) error
	// flat returns a key for each number, so that programs need not know the structure. Numbers that were not measured have no key.
	flat() map[string]any
	// failures returns the expectations that were not met.
	failures() []string
}

// scenarios lists all scenarios.
var scenarios = []scenario{
	compare("drain", "one Node whose Pods share a strict budget with Pods of other Nodes", drainLoad, limitCandidate, capnmCandidate, kubectlCandidate,
		capiCandidate),
	compare("pods", "a full Node without budgets", podsLoad, limitCandidate, evacuatingCandidate, capnmCandidate, kubectlCandidate, capiCandidate),
	compare("orders", "one Node with Pods of five drain orders", ordersLoad, limitCandidate, capnmCandidate, capiCandidate),
	compare("volumes", "one Node whose volumes have to be detached", volumesLoad, limitCandidate, capnmCandidate, capiCandidate),
	compare("nodes", "half of all Nodes at once, under shared budgets", nodesLoad, limitCandidate, evacuatingCandidate, capnmCandidate,
		kubectlCandidate, capiCandidate),
	compare("rollout", "a MachineDeployment replaces all its Nodes", rolloutLoad, capnmRolloutCandidate, announceRolloutCandidate, ignoreRolloutCandidate,
		capiRolloutCandidate),
	alone("burst", "all Machines of a cluster deleted at once", burstLoad, measureBurst),
	alone("wide", "a NodeMaintenance over all Nodes, whose Machines are deleted, under budgets that allow nothing", wideLoad, measureWide),
	atScale("fleet", "500 Clusters, idle and drained", "fleet"),
	atScale("idle", "500 Clusters, idle for five minutes", "idle"),
	atScale("restart", "500 Clusters, a restart while 100 of them are drained", "restart"),
	atScale("scale", "fleet, idle and restart in one run", "fleet", "idle", "restart"),
	smokeScenario,
	summaryScenario,
}

// alone returns a scenario of this provider alone with a load.
func alone(name, about string, l load, measure func(context.Context, *arena, *figures, options) error) scenario {
	return scenario{name: name, about: about, measure: func(ctx context.Context, s scenario, o options) ([]outcome, error) {
		l, err := l.scaled(o)
		if err != nil {
			return nil, err
		}
		f := &figures{name: s.name, about: s.about + ": " + l.String()}
		progress("%s: %s", f.name, f.about)
		return []outcome{f}, onArena(ctx, l, o, func(a *arena) error { return measure(ctx, a, f, o) })
	}}
}

func init() { scenarios = append(scenarios, allScenario) } // it refers to the others
