package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// rolloutFrame is a snapshot of a rollout.
type rolloutFrame struct {
	New, Running, Old, Evictions, WebReady int
	Machines                               []machineRow
}

// machineRow is a Machine that existed when the rollout started, or was created since.
type machineRow struct {
	Name  string
	New   bool
	State machineState
	Left  int32 // Pods still to be evacuated; negative if unknown
}

// machineState is the progress of a Machine.
type machineState string

const (
	machineCreating machineState = "being created"
	machineRunning  machineState = "running"
	machineDeleted  machineState = "deleting"
	machineDraining machineState = "draining"
	machineDrained  machineState = "drained"
	machineGone     machineState = "deleted"
)

// rolloutOf returns a snapshot of a rollout that has started at the given time. Old Machines have one of these values of the
// MachineDeployment's unique label.
func (w *world) rolloutOf(old map[string]bool, begun time.Time) rolloutFrame {
	f := rolloutFrame{Evictions: w.evictions(), WebReady: w.web.ready}
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		machine := w.machines[name]
		if machine.Labels[clusterv1.MachineDeploymentNameLabel] != pool || !machine.gone.IsZero() && machine.gone.Before(begun) {
			continue
		}
		row := machineRow{Name: name, New: !old[machine.Labels[clusterv1.MachineDeploymentUniqueLabel]]}
		row.State, row.Left = w.machineState(machine)
		f.Machines = append(f.Machines, row)
		switch {
		case row.State == machineGone:
		case row.New:
			f.New++
		default:
			f.Old++
		}
		if row.New && row.State == machineRunning {
			f.Running++
		}
	}
	slices.SortStableFunc(f.Machines, func(a, b machineRow) int { return compareBool(a.New, b.New) })
	return f
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

func (w *world) machineState(machine *observedMachine) (state machineState, left int32) {
	m := w.maintenanceOf(machine.Name)
	switch {
	case !machine.gone.IsZero():
		return machineGone, 0
	case machine.isRunning():
		return machineRunning, 0
	case machine.DeletionTimestamp == nil:
		return machineCreating, 0
	case m == nil:
		return machineDeleted, -1
	case m.Spec.Stage != v1alpha1.StageDrain || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained):
		return machineDrained, 0
	case len(m.Status.NodeStatuses) == 0:
		return machineDraining, -1
	default:
		return machineDraining, m.Status.Summary.PodsEvacuating + m.Status.Summary.PodsPending
	}
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
	var names []string
	for _, row := range f.Machines {
		if row.State == machineDraining {
			names = append(names, row.Name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// renderRollout renders a rollout, with a line for each Machine, with at most the given columns and lines.
func renderRollout(f rolloutFrame, elapsed time.Duration, width, height int, s style) []string {
	lines := []string{
		fmt.Sprintf("MachineDeployment  %d new (%d running), %d old   %s", f.New, f.Running, f.Old, seconds(elapsed)),
		fmt.Sprintf("Deployment web     %d of %d Pods ready, %d required", f.WebReady, webReplicas, webNeeded),
		fmt.Sprintf("Pods evicted       %d", f.Evictions),
		"",
	}
	for i := range lines {
		lines[i] = clip(lines[i], width, s)
	}
	for _, row := range f.Machines {
		template := "old"
		if row.New {
			template = "new"
		}
		text := fmt.Sprintf("%-24s  %s  %s", row.Name, template, row.State)
		if row.State == machineDraining && row.Left >= 0 {
			text += fmt.Sprintf(", %d Pods left", row.Left)
		}
		lines = append(lines, colored(clip(text, width, s), machineColors[row.State], s))
	}
	return lines[:min(len(lines), max(height, 1))]
}

var machineColors = map[machineState]string{
	machineCreating: cyan, machineDeleted: yellow, machineDraining: yellow, machineDrained: green, machineGone: dim,
}
