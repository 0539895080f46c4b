package evacuation

import (
	"slices"
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Instigators returns the finalizers of the instigators of the Evacuation.
func Instigators(e *v1alpha1.Evacuation) []string {
	var instigators []string
	for _, finalizer := range e.Finalizers {
		if isInstigator(finalizer) {
			instigators = append(instigators, finalizer)
		}
	}
	return instigators
}

// HasInstigator reports whether the finalizer is that of an instigator of the Evacuation.
func HasInstigator(e *v1alpha1.Evacuation, finalizer string) bool {
	return isInstigator(finalizer) && slices.Contains(e.Finalizers, finalizer)
}

// WithInstigator adds an instigator's own finalizer and keeps the others. The API server refuses it once the Evacuation has a
// deletionTimestamp.
func WithInstigator(finalizers []string, own string) []string {
	if slices.Contains(finalizers, own) {
		return finalizers
	}
	return append(slices.Clone(finalizers), own)
}

// WithoutInstigator withdraws an instigator: it removes the instigator's own finalizer and keeps the others.
func WithoutInstigator(finalizers []string, own string) []string {
	return without(finalizers, func(f string) bool { return f == own })
}

// WithoutInstigators removes the finalizers of all instigators, as the controller does when the Pod has been deleted. It keeps
// foreign finalizers.
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
