package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/test/chaos"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// check is an expectation, and the result.
type check struct {
	Promise  string
	Basis    string   // what was checked, or the numbers of the requirements
	Problems []string // empty if the expectation is met
}

func (c check) ok() bool { return len(c.Problems) == 0 }

func (c *check) problem(format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
}

// untested are the requirements of the invariants about what the demo does not have: budgets that are deleted, volumes, surges, drain
// timeouts, and pauses. Reconciliations are not counted.
var untested = []string{"E55", "M19", "E25", "E52, M96", "M16", "R65"}

// checkAll checks the invariants of the chaos tests, and what only the demo expects.
func checkAll(h *chaos.History, w *world) []check {
	checks := []check{checkReleased(h, w), checkReadyWeb(w.web), checkCordon(h)}
	for _, result := range h.Check() {
		requirements, promise, _ := strings.Cut(result.Invariant, ": ")
		if !slices.Contains(untested, requirements) {
			checks = append(checks, check{strings.ToUpper(promise[:1]) + promise[1:], requirements, result.Violations})
		}
	}
	return checks
}

// evictions returns the evictions that this provider requested.
func evictions(h *chaos.History) controlplane.Events {
	return h.Workload.Audit.WithUserAgent(fleet.ManagerAgent).Verb("create").Resource("pods", "eviction")
}

// checkReleased fails also if no Machine was drained, since nothing else is tested then.
func checkReleased(h *chaos.History, w *world) check {
	released := map[string]int{}
	for _, event := range h.Management.Audit.By(fleet.ManagerUser).Resource("machines.cluster.x-k8s.io").Succeeded().Where(fleet.ReleasesHook) {
		released[event.Name]++
	}
	deleted, evicted := w.deletedMachines(), evictions(h).Succeeded().Len()
	c := check{Promise: "Each deleted Machine was released once", Basis: fmt.Sprintf("%d Machines, %d evictions", len(deleted), evicted)}
	for _, name := range deleted {
		if released[name] != 1 {
			c.problem("the hook of Machine %s was removed %d times", name, released[name])
		}
	}
	if len(deleted) == 0 || evicted == 0 {
		c.problem("nothing was drained")
	}
	return c
}

func checkReadyWeb(web webCount) check {
	c := check{Promise: fmt.Sprintf("There were never fewer than %d ready web Pods", webNeeded), Basis: fmt.Sprintf("minimum: %d of %d", web.least, webReplicas)}
	switch {
	case web.least < webNeeded:
		c.problem("the minimum was %d", web.least)
	case web.least >= webReplicas:
		c.problem("not tested: all Pods were ready all the time")
	}
	return c
}

// checkCordon checks all versions of the Nodes that were stored.
func checkCordon(h *chaos.History) check {
	c := check{Promise: "No Node was uncordoned between its drain and its deletion"}
	cordoned := map[string]bool{}
	for _, version := range h.Workload.Versions {
		switch node, isNode := version.Object.(*corev1.Node); {
		case !isNode:
		case node.Spec.Unschedulable:
			cordoned[node.Name] = true
		case cordoned[node.Name]:
			c.problem("Node %s was schedulable again at revision %d", node.Name, version.Revision)
		}
	}
	if c.Basis = fmt.Sprintf("%d Nodes", len(cordoned)); len(cordoned) == 0 {
		c.problem("no Node was cordoned")
	}
	return c
}
