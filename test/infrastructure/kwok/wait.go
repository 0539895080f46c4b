package kwok

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// machinesTimeout limits WaitForMachinesRunning in addition to the context.
const machinesTimeout = 2 * time.Minute

// WaitForMachinesRunning returns when the cluster has exactly n Machines and all of them are
// Running with a Node that is Ready. Otherwise the error says what is missing.
func WaitForMachinesRunning(ctx context.Context, c client.Reader, cluster client.ObjectKey, n int) error {
	var seen string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, machinesTimeout, true, func(ctx context.Context) (bool, error) {
		machines := &clusterv1.MachineList{}
		err := c.List(ctx, machines, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
		if err != nil {
			return false, errors.Wrap(err, "listing Machines")
		}
		running := 0
		for i := range machines.Items {
			if isRunning(&machines.Items[i]) {
				running++
			}
		}
		seen = describe(machines.Items)
		return running == n && len(machines.Items) == n, nil
	})
	return errors.Wrapf(err, "waiting for %d running Machines of cluster %s; last seen: %s", n, cluster, seen)
}

func isRunning(machine *clusterv1.Machine) bool {
	return machine.DeletionTimestamp.IsZero() &&
		machine.Status.Phase == string(clusterv1.MachinePhaseRunning) &&
		meta.IsStatusConditionTrue(machine.Status.Conditions, clusterv1.MachineNodeReadyCondition)
}

func describe(machines []clusterv1.Machine) string {
	var states []string
	for _, machine := range machines {
		state := fmt.Sprintf("%s %s", machine.Name, machine.Status.Phase)
		if ready := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineNodeReadyCondition); ready != nil && ready.Status != "True" {
			state += fmt.Sprintf(" (node not ready: %s)", ready.Message)
		}
		states = append(states, state)
	}
	if len(states) == 0 {
		return "no Machines"
	}
	return strings.Join(states, ", ")
}
