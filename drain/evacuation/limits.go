package evacuation

import (
	"slices"
	"time"

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

// Limits returns the limits of an Evacuation of a Pod that these built-in evacuators serve, on the Node that the terms are for.
func (t Terms) Limits(builtIn []v1alpha1.Evacuator) *Limits {
	if !t.BuiltInOnly {
		return nil
	}
	return &Limits{BuiltIn: builtIn, ProgressDeadline: t.ProgressDeadline}
}

// allow reports whether an evacuator may be active.
func (l *Limits) allow(class string) bool { return l == nil || contains(l.BuiltIn, class) }

func contains(evacuators []v1alpha1.Evacuator, class string) bool {
	return slices.ContainsFunc(evacuators, func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == class })
}

// WithLater returns evacuators, and those that were requested later.
func WithLater(evacuators, later []v1alpha1.Evacuator) []v1alpha1.Evacuator {
	for _, evacuator := range later {
		if !contains(evacuators, evacuator.EvacuatorClass) {
			evacuators = append(slices.Clone(evacuators), evacuator)
		}
	}
	return evacuators
}
