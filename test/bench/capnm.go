package main

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// capnmCandidate is this product.
var capnmCandidate = candidate{
	name: "capnm", about: "this product: deletion of the Machine to release of our hook",
	runs:     func(o options) int { return o.runs },
	run:      drainByHook,
	requests: func(events controlplane.Events) controlplane.Events { return events.WithUserAgent(fleet.ManagerAgent) },
	steps:    ourSteps,
}

func drainByHook(ctx context.Context, a *arena, t target) (span, error) {
	key := client.ObjectKey{Namespace: a.cluster.Key().Namespace, Name: t.node}
	if err := a.manage(ctx, key); err != nil {
		return span{}, err
	}
	released := func(event watch.Event) bool {
		machine, ok := event.Object.(*clusterv1.Machine)
		return ok && (event.Type == watch.Deleted || !isHeld(machine))
	}
	return a.deleteMachine(ctx, key, &clusterv1.MachineList{}, released)
}

// manage has our policy select the Machine, and waits for the hook.
func (a *arena) manage(ctx context.Context, key client.ObjectKey) error {
	machine := &clusterv1.Machine{}
	if err := a.Client.Get(ctx, key, machine); err != nil {
		return errors.Wrapf(err, "getting Machine %s", key)
	}
	changed := machine.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	changed.Labels[managedLabel] = "true"
	if err := a.Client.Patch(ctx, changed, client.MergeFrom(machine)); err != nil {
		return errors.Wrapf(err, "labeling Machine %s", key)
	}
	err := poll(ctx, "for our hook", func(ctx context.Context) (bool, error) {
		err := a.Client.Get(ctx, key, machine)
		return isHeld(machine), errors.Wrapf(err, "getting Machine %s", key)
	})
	if err != nil {
		return err
	}
	return pause(ctx, calm) // Cluster API carries the label over to the Node
}

func isHeld(machine *clusterv1.Machine) bool {
	_, held := machine.Annotations[v1alpha1.PreDrainHookAnnotation]
	return held
}

// ourSteps are the writes that lead to the first eviction, and that follow the end of the last pod.
func ourSteps(events controlplane.Events) []step {
	evacuations := events.Verb("create").Resource("evacuations").Succeeded()
	return []step{
		{"NodeMaintenance created", first(events.Verb("create").Resource("nodemaintenances").Succeeded())},
		{"Node cordoned", first(events.Verb("patch").Resource("nodes").Succeeded())},
		{"watch of the Node's pods begun", first(events.Verb("watch").Resource("pods"))},
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
