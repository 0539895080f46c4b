package evacuation

import (
	"slices"
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Instigators lists the finalizers of those who ask for the Evacuation.
func Instigators(e *v1alpha1.Evacuation) []string {
	var instigators []string
	for _, finalizer := range e.Finalizers {
		if isInstigator(finalizer) {
			instigators = append(instigators, finalizer)
		}
	}
	return instigators
}

// HasInstigator says whether the owner of this finalizer asks for the Evacuation.
func HasInstigator(e *v1alpha1.Evacuation, finalizer string) bool {
	return isInstigator(finalizer) && slices.Contains(e.Finalizers, finalizer)
}

// WithInstigator adds an instigator's own finalizer, and leaves the others as they are. Once the Evacuation has a
// deletionTimestamp the API server refuses that.
func WithInstigator(finalizers []string, own string) []string {
	if slices.Contains(finalizers, own) {
		return finalizers
	}
	return append(slices.Clone(finalizers), own)
}

// WithoutInstigator withdraws an instigator: its own finalizer goes, the others stay.
func WithoutInstigator(finalizers []string, own string) []string {
	return without(finalizers, func(f string) bool { return f == own })
}

// WithoutInstigators removes all instigators, as the controller does once the Pod is gone. Foreign finalizers stay.
func WithoutInstigators(finalizers []string) []string { return without(finalizers, isInstigator) }

func isInstigator(finalizer string) bool {
	return strings.HasPrefix(finalizer, v1alpha1.InstigatorFinalizerPrefix)
}

func without(finalizers []string, unwanted func(string) bool) []string {
	if !slices.ContainsFunc(finalizers, unwanted) {
		return finalizers
	}
	return slices.DeleteFunc(slices.Clone(finalizers), unwanted)
}
