package main

import (
	"context"
	"os/exec"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
	infrav1 "github.com/capnm/cluster-api-node-maintenance/test/infrastructure/kwok/api/infrastructure/v1beta1"
)

// kubectlCandidate runs kubectl drain.
var kubectlCandidate = candidate{
	name: "kubectl", about: "kubectl drain: wall time of the command",
	runs:     func(o options) int { return o.runs },
	run:      drainByKubectl,
	requests: func(events controlplane.Events) controlplane.Events { return events.By(kubectlUser) },
}

// drainByKubectl runs a concurrent command for each Node.
func drainByKubectl(ctx context.Context, a *arena, t target) (span, error) {
	kubectl, err := controlplane.Tool("kubectl")
	if err != nil {
		return span{}, err
	}
	taken := span{started: time.Now()}
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range t.nodes {
		group.Go(func() error {
			command := exec.CommandContext(ctx, kubectl, "--kubeconfig", a.kubeconfig, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
			output, err := command.CombinedOutput()
			return errors.Wrapf(err, "draining Node %s: %s", node, output)
		})
	}
	err = group.Wait()
	taken.ended = time.Now()
	return taken, err
}

// capiCandidate is Cluster API's drain of a Machine that no MachineDrainPolicy selects.
var capiCandidate = candidate{
	name: "capi", about: "Cluster API's own drain: deletion of the Machine to deletion of its infrastructure",
	runs: func(o options) int { return o.capiRuns },
	run:  drainByClusterAPI,
	requests: func(events controlplane.Events) controlplane.Events {
		return events.WithUserAgent(fleet.CoreAgent)
	},
}

func drainByClusterAPI(ctx context.Context, a *arena, t target) (span, error) {
	// After the drain, Cluster API deletes the infrastructure of the Machine next.
	deleting := func(event watch.Event) bool {
		machine, ok := event.Object.(*infrav1.KwokMachine)
		return ok && (event.Type == watch.Deleted || !machine.DeletionTimestamp.IsZero())
	}
	taken, _, err := a.deleteMachines(ctx, t.nodes, &infrav1.KwokMachineList{}, deleting)
	return taken, err
}

// deleteMachines deletes Machines of the arena concurrently, and waits for all of them, see deleteAndAwait.
func (a *arena) deleteMachines(ctx context.Context, names []string, kind client.ObjectList, until func(watch.Event) bool) (span, map[string]time.Time, error) {
	return deleteAndAwait(ctx, a.Client, a.keysOf(names), sets.New(names...), kind, until)
}

func (a *arena) keysOf(machines []string) (keys []objectKey) {
	for _, name := range machines {
		keys = append(keys, objectKey{Namespace: a.namespace(), Name: name})
	}
	return keys
}

// deleteAndAwait deletes Machines concurrently, and waits for some of them, each until an event of an object of its name satisfies a
// condition. It returns the times of these events.
func deleteAndAwait(ctx context.Context, c client.WithWatch, machines []objectKey, some sets.Set[string], kind client.ObjectList, until func(watch.Event) bool,
) (taken span, released map[string]time.Time, err error) {
	watcher, err := lastingWatch(ctx, c, kind)
	if err != nil {
		return span{}, nil, err
	}
	defer watcher.Stop()
	taken.started = time.Now()
	deleted := make(chan error, 1)
	// Concurrent with the watch, whose events would otherwise wait for the last deletion.
	go func() { deleted <- deleteAll(ctx, c, machines) }()
	released, err = awaitEach(ctx, watcher, some, until)
	if deleteErr := <-deleted; err == nil {
		err = deleteErr
	}
	taken.ended = time.Now()
	return taken, released, err
}

func deleteAll(ctx context.Context, c client.Client, machines []objectKey) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelWrites)
	for _, key := range machines {
		group.Go(func() error {
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			return errors.Wrapf(c.Delete(ctx, machine), "deleting Machine %s", key.Name)
		})
	}
	return group.Wait()
}

// awaitEach waits for an event that satisfies the condition for each name.
func awaitEach(ctx context.Context, watcher watch.Interface, waiting sets.Set[string], until func(watch.Event) bool) (map[string]time.Time, error) {
	seen := map[string]time.Time{}
	for waiting.Len() > 0 {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				return seen, errors.Errorf("the watch of %d Machines was closed", waiting.Len())
			}
			if object, ok := event.Object.(client.Object); ok && waiting.Has(object.GetName()) && until(event) {
				waiting.Delete(object.GetName())
				seen[object.GetName()] = time.Now()
			}
		case <-ctx.Done():
			return seen, errors.Wrapf(ctx.Err(), "waiting for %d Machines to be drained", waiting.Len())
		}
	}
	return seen, nil
}
