package main

import (
	"context"
	"io"
)

// scenario is something to measure.
type scenario struct {
	name, about string
	// measure runs it.
	measure func(ctx context.Context, s scenario, o options) ([]outcome, error)
}

// outcome is what a scenario has come to.
type outcome interface {
	// title is the name of its file.
	title() string
	// print writes it for people.
	print(w io.Writer) error
	// flat has a key for each number, so that other programs needn't know the structure. What wasn't measured has no key.
	flat() map[string]any
	// failures are the promises that were broken.
	failures() []string
}

// scenarios are all that can be measured.
var scenarios = []scenario{
	compare("drain", "one node whose pods share a tight budget with those of others", drainLoad, limitCandidate, capnmCandidate, kubectlCandidate, capiCandidate),
	compare("pods", "a full node without budgets", podsLoad, limitCandidate, capnmCandidate, kubectlCandidate, capiCandidate),
	compare("orders", "one node whose pods go in five drain orders", ordersLoad, limitCandidate, capnmCandidate, capiCandidate),
	compare("volumes", "one node whose volumes have to be detached", volumesLoad, limitCandidate, capnmCandidate, capiCandidate),
	compare("nodes", "half of all nodes at once, under shared budgets", nodesLoad, limitCandidate, capnmCandidate, kubectlCandidate, capiCandidate),
	compare("rollout", "a MachineDeployment replaces all its nodes", rolloutLoad, capnmRolloutCandidate, announceRolloutCandidate, ignoreRolloutCandidate, capiRolloutCandidate),
	burstScenario,
	atScale("fleet", "500 Clusters, idle and drained", "fleet"),
	atScale("idle", "500 Clusters, idle for five minutes", "idle"),
	atScale("restart", "500 Clusters, a restart while 100 of them are drained", "restart"),
	atScale("scale", "fleet, idle and restart in one run", "fleet", "idle", "restart"),
	shardsScenario,
	smokeScenario,
}
