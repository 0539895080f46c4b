package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// rolloutFrame is a snapshot of a rollout.
type rolloutFrame struct {
	New, Running, Old, Evictions int
	Draining                     []string // names of Machines
}

// rolloutOf returns a snapshot of a rollout. Old Machines have one of these values of the MachineDeployment's unique label.
func (w *world) rolloutOf(old map[string]bool) rolloutFrame {
	f := rolloutFrame{Evictions: w.evictions()}
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		machine := w.machines[name]
		switch {
		case machine.Labels[clusterv1.MachineDeploymentNameLabel] != pool || !machine.gone.IsZero():
			continue
		case old[machine.Labels[clusterv1.MachineDeploymentUniqueLabel]]:
			f.Old++
		case machine.isRunning():
			f.New++
			f.Running++
		default:
			f.New++
		}
		if w.isDraining(machine) {
			f.Draining = append(f.Draining, name)
		}
	}
	return f
}

func (w *world) isDraining(machine *observedMachine) bool {
	m := w.maintenanceOf(machine.Name)
	return m != nil && m.Spec.Stage == v1alpha1.StageDrain && !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
}

func (f rolloutFrame) done() bool { return f.Old == 0 && f.New == workers && f.Running == workers }

// String returns one line.
func (f rolloutFrame) String() string {
	return fmt.Sprintf("%s  evicted %3d  draining: %s", f.counts(), f.Evictions, f.draining())
}

// milestone changes when Machines are created, deleted or start to be drained, but not with every Pod.
func (f rolloutFrame) milestone() string { return f.counts() + f.draining() }

func (f rolloutFrame) counts() string {
	return fmt.Sprintf("Machines %d new (%d running), %d old", f.New, f.Running, f.Old)
}

func (f rolloutFrame) draining() string {
	if len(f.Draining) == 0 {
		return "none"
	}
	return strings.Join(f.Draining, ", ")
}
