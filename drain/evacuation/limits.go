package evacuation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Limits are what NodeMaintenances with evacuators BuiltIn impose on an Evacuation that they ask for, whoever created it: one that a
// tenant has created before must not hold a Node by the evacuators that it lists, or by its progress deadline.
//
// A nil pointer is no limit.
type Limits struct {
	// BuiltIn are the evacuators that may have a turn: those of ours that serve the Pod.
	BuiltIn []v1alpha1.Evacuator
	// ProgressDeadline is how long they may go without reporting progress. Zero: as the Evacuation says.
	ProgressDeadline time.Duration
}

// Limits returns the limits of an Evacuation of a Pod on the Node that the terms are for.
func (t Terms) Limits(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) *Limits {
	if !t.BuiltInOnly || !HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		return nil
	}
	return &Limits{BuiltIn: serving(pod, podType), ProgressDeadline: t.ProgressDeadline}
}

// allow says whether an evacuator may have a turn.
func (l *Limits) allow(class string) bool { return l == nil || contains(l.BuiltIn, class) }

// next returns the first of the evacuators that may have a turn, "" if there is none.
func (l *Limits) next(evacuators []v1alpha1.Evacuator) string {
	for _, evacuator := range evacuators {
		if l.allow(evacuator.EvacuatorClass) {
			return evacuator.EvacuatorClass
		}
	}
	return ""
}

// complete adds the evacuator of the DaemonSet where spec.evacuators leaves it out: these Pods are never evicted, so they would never
// be removed. All other Pods are evicted where nobody serves them.
func (l *Limits) complete(evacuators []v1alpha1.Evacuator) []v1alpha1.Evacuator {
	if l == nil || !contains(l.BuiltIn, v1alpha1.EvacuatorClassDaemonSet) || contains(evacuators, v1alpha1.EvacuatorClassDaemonSet) {
		return evacuators
	}
	return append(slices.Clone(evacuators), v1alpha1.Evacuator{EvacuatorClass: v1alpha1.EvacuatorClassDaemonSet, Priority: last})
}

// last is the priority of an evacuator that has its turn after all others.
const last = -1

func contains(evacuators []v1alpha1.Evacuator, class string) bool {
	return slices.ContainsFunc(evacuators, func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == class })
}
