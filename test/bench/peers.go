package main

import (
	"context"
	"os/exec"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// kubectlCandidate is what people do by hand.
var kubectlCandidate = candidate{
	name: "kubectl", about: "kubectl drain: wall time of the command",
	runs:     func(o options) int { return o.runs },
	run:      drainByKubectl,
	requests: func(events controlplane.Events) controlplane.Events { return events.By(kubectlUser) },
}

func drainByKubectl(ctx context.Context, a *arena, t target) (span, error) {
	kubectl, err := controlplane.Tool("kubectl")
	if err != nil {
		return span{}, err
	}
	command := exec.CommandContext(ctx, kubectl, "--kubeconfig", a.kubeconfig, "drain", t.node, "--ignore-daemonsets", "--delete-emptydir-data")
	taken := span{started: time.Now()}
	output, err := command.CombinedOutput()
	taken.ended = time.Now()
	return taken, errors.Wrapf(err, "draining Node %s: %s", t.node, output)
}

// capiCandidate is what Cluster API does with a Machine that no MachineDrainPolicy selects.
var capiCandidate = candidate{
	name: "capi", about: "Cluster API's own drain: deletion of the Machine to deletion of its infrastructure",
	runs: func(o options) int { return o.capiRuns },
	run:  drainByClusterAPI,
	requests: func(events controlplane.Events) controlplane.Events {
		return events.WithUserAgent(fleet.CoreAgent)
	},
}

func drainByClusterAPI(ctx context.Context, a *arena, t target) (span, error) {
	key := client.ObjectKey{Namespace: a.cluster.Key().Namespace, Name: t.node}
	// Once the Node is drained, the next thing that Cluster API does to the Machine is to delete its infrastructure.
	deleting := func(event watch.Event) bool {
		machine, ok := event.Object.(*infrav1.KwokMachine)
		return ok && (event.Type == watch.Deleted || !machine.DeletionTimestamp.IsZero())
	}
	return a.deleteMachine(ctx, key, &infrav1.KwokMachineList{}, deleting)
}

// deleteMachine deletes a Machine, and takes the time until an event of an object of its name satisfies a condition.
func (a *arena) deleteMachine(ctx context.Context, key client.ObjectKey, kind client.ObjectList, until func(watch.Event) bool) (span, error) {
	watcher, err := a.Client.Watch(ctx, kind, client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name})
	if err != nil {
		return span{}, errors.Wrapf(err, "watching %s", key)
	}
	defer watcher.Stop()
	taken := span{started: time.Now()}
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := a.Client.Delete(ctx, machine); err != nil {
		return span{}, errors.Wrapf(err, "deleting Machine %s", key)
	}
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return span{}, errors.Errorf("the watch of %s has ended", key)
			}
			if until(event) {
				taken.ended = time.Now()
				return taken, nil
			}
		case <-ctx.Done():
			return span{}, errors.Wrapf(ctx.Err(), "waiting for Machine %s to be drained", key)
		}
	}
}
