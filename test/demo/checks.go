package main

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// check is an expectation, and the result for the evidence.
type check struct {
	Promise  string
	Basis    string   // the checked items, such as "88 evictions"
	Problems []string // empty if the expectation is met
}

func (c check) ok() bool { return len(c.Problems) == 0 }

func (c *check) problem(format string, args ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
}

// basis records the number of checked items. A check of no items fails, since it has not tested the expectation.
func (c *check) basis(count int, of string) {
	c.Basis = fmt.Sprintf("%d %s", count, of)
	if count == 0 {
		c.problem("not tested: 0 %s", of)
	}
}

// checkAll runs all checks.
func checkAll(e evidence) []check {
	var checks []check
	for _, judge := range []func(evidence) check{
		checkLeftAlone, checkOnlyDrainedNodes, checkEvictedOnce, checkPrecondition, checkOrder,
		checkBudget, checkReadyWeb, checkCore, checkNoPlainDeletion, checkHooks, checkCordon,
	} {
		checks = append(checks, judge(e))
	}
	return checks
}

func checkLeftAlone(e evidence) check {
	c := check{Promise: "No Pod with the verdict Skip or WaitCompleted was evicted"}
	spared := 0
	for _, pod := range e.Pods {
		if pod.Behavior == v1alpha1.DrainBehaviorSkip || pod.Behavior == v1alpha1.DrainBehaviorWaitCompleted {
			spared++
		}
	}
	c.basis(spared, "such Pods")
	for _, v := range e.evictions() {
		if v.Pod.Behavior == v1alpha1.DrainBehaviorSkip || v.Pod.Behavior == v1alpha1.DrainBehaviorWaitCompleted {
			c.problem("%s is %s, but: %s", v.Pod, v.Pod.Behavior, v.Event)
		}
	}
	return c
}

func checkOnlyDrainedNodes(e evidence) check {
	c := check{Promise: "Pods were evicted only from Nodes of deleted Machines"}
	drained := map[string]bool{}
	for _, drain := range e.Drains {
		drained[drain.Node] = true
		if drain.Maintenance == "" {
			c.problem("Machine %s was deleted without a NodeMaintenance", drain.Machine)
		}
	}
	c.basis(len(e.Drains), "Machines")
	for _, v := range e.accepted() {
		if v.Seen && !drained[v.Pod.Node] {
			c.problem("%s was on Node %q: %s", v.Pod, v.Pod.Node, v.Event)
		}
	}
	return c
}

func checkEvictedOnce(e evidence) check {
	c := check{Promise: "No Pod was evicted twice"}
	count := map[types.UID]int{}
	for _, v := range e.accepted() {
		if v.UID == "" {
			continue // checkPrecondition reports it
		}
		if count[v.UID]++; count[v.UID] > 1 {
			c.problem("second eviction: %s", v.Event)
		}
	}
	c.basis(len(count), "Pods")
	return c
}

func checkPrecondition(e evidence) check {
	c := check{Promise: "Every eviction had the UID of its Pod as precondition"}
	all := e.evictions()
	c.basis(len(all), "evictions")
	for _, v := range all {
		switch {
		case v.UID == "":
			c.problem("without UID: %s", v.Event)
		case !v.Seen:
			c.problem("UID %s is that of no Pod: %s", v.UID, v.Event)
		case v.Pod.Namespace != v.Namespace || v.Pod.Name != v.Name:
			c.problem("UID %s is that of %s: %s", v.UID, v.Pod, v.Event)
		}
	}
	return c
}

func checkOrder(e evidence) check {
	c := check{Promise: "Pods of a higher drain order were evicted after all Pods of lower orders had left the Node"}
	over, later := e.over(), 0
	for _, v := range e.accepted() {
		if !v.Seen || v.Pod.Order == 0 {
			continue
		}
		later++
		for _, uid := range e.onNode(v.Pod.Node) {
			pod := e.Pods[uid]
			if pod.Behavior == v1alpha1.DrainBehaviorSkip || pod.Order >= v.Pod.Order {
				continue
			}
			if at, known := over[uid]; !known || !at.Before(v.Requested) {
				c.problem("%s (order %d) was evicted at %s, when %s (order %d) was still on the Node", v.Pod, v.Pod.Order, clock(v.Event), pod, pod.Order)
			}
		}
	}
	c.basis(later, "evictions of a higher order")
	return c
}

// checkBudget computes the healthy Pods of the budget: a Pod is healthy from its kubelet's first report until it is evicted. The
// report counts from its request, and the eviction from its response, so the actual number may be lower and is never higher.
func checkBudget(e evidence) check {
	c := check{Promise: fmt.Sprintf("Every eviction of a web Pod left %d others ready", e.WebNeeded)}
	web := map[string]bool{}
	for _, pod := range e.Pods {
		web[pod.String()] = web[pod.String()] || pod.App == appWeb
	}
	reports := e.reports()
	evicted := 0
	for _, v := range e.accepted() {
		if !web[v.Namespace+"/"+v.Name] {
			continue
		}
		ready := 0
		for key, times := range reports {
			if web[key] && times[0].Before(v.Answered) {
				ready++
			}
		}
		evicted++
		if ready -= evicted; ready < e.WebNeeded {
			c.problem("%d were left by %s", ready, v.Event)
		}
	}
	c.basis(evicted, "evictions")
	return c
}

func checkReadyWeb(e evidence) check {
	c := check{Promise: fmt.Sprintf("There were never fewer than %d ready web Pods", e.WebNeeded), Basis: fmt.Sprintf("minimum: %d of %d", e.WebLeast, e.WebReplicas)}
	switch {
	case e.WebLeast < e.WebNeeded:
		c.problem("the minimum was %d", e.WebLeast)
	case e.WebLeast >= e.WebReplicas:
		c.problem("not tested: all Pods were ready all the time")
	}
	return c
}

func checkCore(e evidence) check {
	c := check{Promise: "Cluster API's own drain evicted and deleted no Pod"}
	requests := e.Workload.WithUserAgent(fleet.CoreAgent)
	c.basis(requests.Len(), "requests of its core manager")
	for _, event := range append(requests.Verb("create").Resource("pods", "eviction"), requests.Verb("delete", "deletecollection").Resource("pods")...) {
		c.problem("%s", event)
	}
	return c
}

func checkNoPlainDeletion(e evidence) check {
	c := check{Promise: "This provider evicted Pods, and deleted none directly"}
	requests := e.Workload.WithUserAgent(fleet.ManagerAgent)
	c.basis(requests.Verb("create").Resource("pods", "eviction").Len(), "evictions by it")
	for _, event := range requests.Verb("delete", "deletecollection").Resource("pods") {
		c.problem("%s", event)
	}
	return c
}

func checkHooks(e evidence) check {
	c := check{Promise: "Every Machine was released once, after its drain"}
	c.basis(len(e.Drains), "Machines")
	over, releases := e.over(), e.releases()
	for _, drain := range e.Drains {
		released := releases[drain.Machine]
		if len(released) != 1 {
			c.problem("the hook of Machine %s was removed %d times", drain.Machine, len(released))
			continue
		}
		for _, uid := range e.onNode(drain.Node) {
			pod := e.Pods[uid]
			if pod.Behavior == v1alpha1.DrainBehaviorSkip {
				continue
			}
			if at, known := over[uid]; !known || !at.Before(released[0].Requested) {
				c.problem("Machine %s was released at %s, when %s was still on the Node", drain.Machine, clock(released[0]), pod)
			}
		}
		for _, v := range e.accepted() {
			if v.Pod.Node == drain.Node && !v.Requested.Before(released[0].Requested) {
				c.problem("Machine %s was released at %s, before %s", drain.Machine, clock(released[0]), v.Event)
			}
		}
	}
	return c
}

// checkCordon looks for requests that make a Node schedulable after it was cordoned. The watch covers requests that it cannot parse,
// such as other patch formats.
func checkCordon(e evidence) check {
	c := check{Promise: "No Node was uncordoned between its drain and its deletion"}
	cordoned := map[string]bool{}
	for _, event := range e.Workload.Verb("patch", "update").Resource("nodes").Succeeded() {
		unschedulable, says := fleet.Unschedulable(event)
		switch {
		case says && unschedulable:
			cordoned[event.Name] = true
		case says && cordoned[event.Name]:
			c.problem("%s", event)
		}
	}
	for _, drain := range e.Drains {
		if !cordoned[drain.Node] {
			c.problem("Node %s was never cordoned", drain.Node)
		}
	}
	c.basis(len(cordoned), "Nodes")
	if len(e.Uncordoned) > 0 {
		c.problem("observed as schedulable again: %s", strings.Join(e.Uncordoned, ", "))
	}
	return c
}

func clock(event controlplane.Event) string { return event.Requested.Format("15:04:05.000") }
