package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// capnmCandidate is this provider.
var capnmCandidate = candidate{
	name: "capnm", about: "this provider: deletion of the Machine to release of our hook",
	runs:     func(o options) int { return o.runs },
	run:      drainByHook,
	requests: func(events controlplane.Events) controlplane.Events { return events.WithUserAgent(fleet.ManagerAgent) },
	steps:    ourSteps,
}

func drainByHook(ctx context.Context, a *arena, t target) (span, error) {
	if err := a.manage(ctx, t.nodes); err != nil {
		return span{}, err
	}
	taken, _, err := a.deleteMachines(ctx, t.nodes, &clusterv1.MachineList{}, isReleased)
	return taken, err
}

// isReleased returns whether an event shows a Machine without our hook.
func isReleased(event watch.Event) bool {
	machine, ok := event.Object.(*clusterv1.Machine)
	return ok && (event.Type == watch.Deleted || !machinedrain.HasHook(machine))
}

// manage makes our policy select Machines, and waits for the hooks.
func (a *arena) manage(ctx context.Context, names []string) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelWrites)
	for _, name := range names {
		group.Go(func() error {
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace(), Name: name}}
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, managedLabel))
			return errors.Wrapf(a.Client.Patch(groupCtx, machine, patch), "labeling Machine %s", name)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return a.awaitHooks(ctx, len(names))
}

// awaitHooks waits until count Machines have our hook.
func (a *arena) awaitHooks(ctx context.Context, count int) error {
	err := poll(ctx, fmt.Sprintf("for our hook on %d Machines", count), func(ctx context.Context) (bool, error) {
		machines := &clusterv1.MachineList{}
		if err := a.Client.List(ctx, machines, client.InNamespace(a.namespace())); err != nil {
			return false, errors.Wrap(err, "listing Machines")
		}
		held := 0
		for i := range machines.Items {
			if machinedrain.HasHook(&machines.Items[i]) {
				held++
			}
		}
		return held == count, nil
	})
	if err != nil {
		return err
	}
	return pause(ctx, calm) // Cluster API propagates labels to the Nodes
}

// ourSteps are the writes before the first eviction and after the end of the last Pod.
func ourSteps(events controlplane.Events) []step {
	evacuations := events.Verb("create").Resource("evacuations").Succeeded()
	return []step{
		{"NodeMaintenance created", first(events.Verb("create").Resource("nodemaintenances").Succeeded())},
		{"Node cordoned", first(events.Verb("patch").Resource("nodes").Succeeded())},
		{"watch of the Node's Pods started", first(events.Verb("watch").Resource("pods"))},
		{"first Evacuation created", first(evacuations)},
		{"last Evacuation created", last(evacuations)},
		{"first Evacuation to be evicted", first(events.Verb("patch").Resource("evacuations", "status").Succeeded())},
		{"first eviction requested", firstRequest(events.Verb("create").Resource("pods", "eviction"))},
		{"last eviction answered", last(events.Verb("create").Resource("pods", "eviction"))},
		{"last Evacuation deleted", last(events.Verb("delete").Resource("evacuations").Succeeded())},
		{"NodeMaintenance drained", last(events.Verb("patch").Resource("nodemaintenances", "status").Succeeded())},
	}
}

func first(events controlplane.Events) time.Time {
	if len(events) == 0 {
		return time.Time{}
	}
	return events[0].Answered
}

func last(events controlplane.Events) time.Time {
	if len(events) == 0 {
		return time.Time{}
	}
	return events[len(events)-1].Answered
}

func firstRequest(events controlplane.Events) time.Time {
	if len(events) == 0 {
		return time.Time{}
	}
	return events[0].Requested
}
