package workloadcluster

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// exact are the kinds whose fields no controller sets, so that any difference other than a default is a change by another actor.
var exact = []string{"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole", "ClusterRoleBinding"}

// defaults are the values that the API server sets in fields that the bundle leaves unset.
var defaults = map[string]any{
	"namespaceSelector": map[string]any{},
	"objectSelector":    map[string]any{},
	"matchPolicy":       "Equivalent",
	"scope":             "*",
	"conversion":        map[string]any{"strategy": "None"},
}

// differs reports whether a present object differs from the wanted one other than by a default. It ignores the status, and labels and
// annotations that are not wanted.
func differs(wanted, present *unstructured.Unstructured) bool {
	if !slices.Contains(exact, wanted.GetKind()) {
		return false
	}
	return !contains(present.GetLabels(), wanted.GetLabels()) || !contains(present.GetAnnotations(), wanted.GetAnnotations()) ||
		!equal(content(wanted), content(present))
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if present, found := all[key]; !found || present != value {
			return false
		}
	}
	return true
}

// content returns the fields of an object other than metadata and status.
func content(object *unstructured.Unstructured) map[string]any {
	fields := maps.Clone(object.Object)
	delete(fields, "metadata")
	delete(fields, "status")
	return fields
}

// equal reports whether two values are equal except for defaults in the present one.
func equal(wanted, present any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		present, ok := present.(map[string]any)
		if !ok {
			return false
		}
		for key, value := range wanted {
			if !equal(value, present[key]) {
				return false
			}
		}
		for key, value := range present {
			if _, set := wanted[key]; !set && (value == nil || !reflect.DeepEqual(defaults[key], value)) {
				return false
			}
		}
		return true
	case []any:
		present, ok := present.([]any)
		return ok && slices.EqualFunc(wanted, present, equal)
	default:
		return reflect.DeepEqual(wanted, present)
	}
}
