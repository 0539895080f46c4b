// Package jsonpatch writes changes to objects in workload clusters as JSON patches that test what they change, so that continuous writes of
// other actors cause no conflicts.
package jsonpatch

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
)

// Node patches labels, annotations, unschedulable and taints of a Node from before to after. It returns a conflict if a value that it
// changes, unschedulable, or the recorded state of the Node differs from before, or if before is another Node with the same name. Other
// changes of the Node cause no conflict: with the resourceVersion as precondition, a kubelet that writes continuously would make every
// attempt fail. Node sets after to the stored Node.
func Node(ctx context.Context, c client.Client, before, after *corev1.Node) error {
	return patchTested(ctx, c, after, corev1.Resource("nodes"), nodePatch(before, after))
}

// Finalizers replaces the finalizers of an Evacuation, and removes the annotation by which NodeMaintenances request it if after does
// not have it. It returns a conflict if the finalizers or the annotation differ from before, if before is another Evacuation with the same
// name, or if a finalizer is added to an Evacuation that is being deleted. A merge patch would remove the finalizers that another actor has
// added. Other changes cause no conflict: evacuators and tenants may write the status continuously. Finalizers sets after to the
// stored Evacuation.
func Finalizers(ctx context.Context, c client.Client, before, after *v1alpha1.Evacuation) error {
	const path, requested = "/metadata/finalizers", v1alpha1.NodeMaintenanceInstigatorFinalizer
	patch := []operation{{"test", "/metadata/uid", before.UID}, {"test", path, before.Finalizers}}
	if len(after.Finalizers) > len(before.Finalizers) {
		patch = append(patch, operation{"test", "/metadata/deletionTimestamp", nil})
	}
	patch = append(patch, operation{"add", path, append([]string{}, after.Finalizers...)})
	if _, annotated := before.Annotations[requested]; annotated && valueOrAbsent(after.Annotations, requested) == nil {
		patch = append(patch, operation{"remove", "/metadata/annotations/" + pathEscape.Replace(requested), nil})
	}
	return patchTested(ctx, c, after, schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "evacuations"}, patch)
}

// patchTested sends a JSON patch, and returns a conflict if one of its tests fails.
func patchTested(ctx context.Context, c client.Client, object client.Object, resource schema.GroupResource, operations []operation) error {
	name := object.GetName()
	patch, err := json.Marshal(operations)
	if err != nil {
		return errors.Wrapf(err, "encoding the patch of %s %s", resource, name)
	}
	err = c.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch))
	if testFailed(err) {
		return apierrors.NewConflict(resource, name, err)
	}
	return err //nolint:wrapcheck // the caller adds the context
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"` // null: in a test, the path must not exist
}

func nodePatch(before, after *corev1.Node) []operation {
	patch := []operation{{"test", "/metadata/uid", before.UID}}
	change := func(path string, old, changed any) {
		patch = append(patch, operation{"test", path, old})
		switch {
		case apiequality.Semantic.DeepEqual(old, changed):
		case changed == nil:
			patch = append(patch, operation{"remove", path, nil})
		default:
			patch = append(patch, operation{"add", path, changed})
		}
	}
	change("/spec/unschedulable", trueOrAbsent(before.Spec.Unschedulable), trueOrAbsent(after.Spec.Unschedulable))
	if !apiequality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
		change("/spec/taints", listOrAbsent(before.Spec.Taints), listOrAbsent(after.Spec.Taints))
	}
	changeKeys := func(path string, old, changed map[string]string, keys sets.Set[string]) {
		switch {
		case len(old) == 0 && len(changed) > 0: // there is no map to add a key to
			change(path, nil, changed)
		case len(old) > 0:
			for _, key := range sets.List(keys) {
				change(path+"/"+pathEscape.Replace(key), valueOrAbsent(old, key), valueOrAbsent(changed, key))
			}
		}
	}
	changeKeys("/metadata/labels", before.Labels, after.Labels, changedKeys(before.Labels, after.Labels))
	changeKeys("/metadata/annotations", before.Annotations, after.Annotations,
		changedKeys(before.Annotations, after.Annotations).Insert(v1alpha1.NodeOriginAnnotation))
	slices.SortStableFunc(patch, testsFirst)
	return patch
}

// pathEscape escapes a key in a path (RFC 6901).
var pathEscape = strings.NewReplacer("~", "~0", "/", "~1")

// testsFirst orders all tests before all changes, because an operation applies to the result of the operations before it.
func testsFirst(a, b operation) int {
	isTest := func(o operation) int {
		if o.Op == "test" {
			return 0
		}
		return 1
	}
	return isTest(a) - isTest(b)
}

func changedKeys(before, after map[string]string) sets.Set[string] {
	keys := sets.KeySet(before).Union(sets.KeySet(after))
	maps.DeleteFunc(keys, func(key string, _ sets.Empty) bool {
		old, was := before[key]
		changed, is := after[key]
		return was == is && old == changed
	})
	return keys
}

func trueOrAbsent(value bool) any {
	if value {
		return true
	}
	return nil
}

func listOrAbsent(taints []corev1.Taint) any {
	if len(taints) > 0 {
		return taints
	}
	return nil
}

func valueOrAbsent(values map[string]string, key string) any {
	if value, present := values[key]; present {
		return value
	}
	return nil
}

// testFailed reports whether the API server could not apply a JSON patch to the present object. Refusals by admission have the same status
// code.
func testFailed(err error) bool {
	return apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) && !answers.IsDeniedByWebhook(err)
}
