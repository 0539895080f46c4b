package evacuation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Limits are what NodeMaintenances with evacuators BuiltIn impose on an Evacuation of which they are an instigator, also on one that
// another actor created: the evacuators and the progress deadline of an Evacuation that a tenant has created must not block the drain
// of a Node.
//
// A nil pointer is no limit.
type Limits struct {
	// BuiltIn are the evacuators that may be activated: the built-in ones that serve the Pod.
	BuiltIn []v1alpha1.Evacuator
	// ProgressDeadline is an upper bound for the progress deadline of the Evacuation. Zero: no bound.
	ProgressDeadline time.Duration
}

// Limits returns the limits of an Evacuation of a Pod on the Node that the terms are for.
func (t Terms) Limits(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) *Limits {
	if !t.BuiltInOnly || !HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		return nil
	}
	return &Limits{BuiltIn: serving(pod, podType), ProgressDeadline: t.ProgressDeadline}
}

// allow reports whether an evacuator may be active.
func (l *Limits) allow(class string) bool { return l == nil || contains(l.BuiltIn, class) }

// next returns the class of the first of the evacuators that may be activated, or "".
func (l *Limits) next(evacuators []v1alpha1.Evacuator) string {
	for _, evacuator := range evacuators {
		if l.allow(evacuator.EvacuatorClass) {
			return evacuator.EvacuatorClass
		}
	}
	return ""
}

// complete adds the DaemonSet evacuator if it serves the Pod and spec.evacuators does not list it: Pods of DaemonSets are never
// evicted, so nothing else would remove them. All other Pods are evicted if no evacuator serves them.
func (l *Limits) complete(evacuators []v1alpha1.Evacuator) []v1alpha1.Evacuator {
	if l == nil || !contains(l.BuiltIn, v1alpha1.EvacuatorClassDaemonSet) || contains(evacuators, v1alpha1.EvacuatorClassDaemonSet) {
		return evacuators
	}
	return append(slices.Clone(evacuators), v1alpha1.Evacuator{EvacuatorClass: v1alpha1.EvacuatorClassDaemonSet, Priority: last})
}

// last is the priority of an evacuator that is tried after all others.
const last = -1

func contains(evacuators []v1alpha1.Evacuator, class string) bool {
	return slices.ContainsFunc(evacuators, func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == class })
}
