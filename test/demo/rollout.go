package main

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// rolloutFrame is one picture of a rollout.
type rolloutFrame struct {
	New, Running, Old, Evictions int
	Drains                       []drainView
}

// drainView is a drain that goes on.
type drainView struct {
	Machine string
	Left    int32 // Pods, negative: not known yet
}

// rolloutOf takes a picture of a rollout. Old are the Machines that have one of these values of the MachineDeployment's
// unique label.
func (w *world) rolloutOf(old map[string]bool) rolloutFrame {
	f := rolloutFrame{Evictions: w.evictions()}
	for _, name := range w.workersThere() {
		machine := w.machines[name]
		if old[machine.Labels[clusterv1.MachineDeploymentUniqueLabel]] {
			f.Old++
		} else {
			f.New++
			if machine.isRunning() {
				f.Running++
			}
		}
		m := w.maintenanceOf(name)
		if machine.DeletionTimestamp == nil || m == nil || m.Spec.Stage != v1alpha1.StageDrain || meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained) {
			continue
		}
		drain := drainView{Machine: name, Left: -1}
		if len(m.Status.NodeStatuses) > 0 {
			drain.Left = m.Status.Summary.PodsEvacuating + m.Status.Summary.PodsPending
		}
		f.Drains = append(f.Drains, drain)
	}
	return f
}

func (f rolloutFrame) done() bool { return f.Old == 0 && f.New == workers && f.Running == workers }

// String is one line.
func (f rolloutFrame) String() string {
	return fmt.Sprintf("%s  evicted so far %3d  draining: %s", f.machines(), f.Evictions, f.drains(true))
}

// milestone changes with Machines that come, go, or begin to be drained, but not with every Pod.
func (f rolloutFrame) milestone() string { return f.machines() + f.drains(false) }

func (f rolloutFrame) machines() string {
	return fmt.Sprintf("Machines %d new (%d running), %d old", f.New, f.Running, f.Old)
}

func (f rolloutFrame) drains(withPods bool) string {
	if len(f.Drains) == 0 {
		return "none"
	}
	var drains []string
	for _, drain := range f.Drains {
		text := drain.Machine
		if withPods && drain.Left >= 0 {
			text += fmt.Sprintf(" (Pods left: %d)", drain.Left)
		}
		drains = append(drains, text)
	}
	return strings.Join(drains, ", ")
}
