package workloadcluster

import (
	"context"
	"strconv"
	"sync"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
)

// fieldManager is the field owner of the objects of the bundle in workload clusters.
const fieldManager = "capnm-bundle"

// Applied is the state of the bundle in a workload cluster.
type Applied struct {
	// Established means that the API server serves all CRDs.
	Established bool
	// Missing are the admission policies and bindings that the workload cluster does not serve, or whose expressions its Kubernetes version
	// does not support. Without them, any user who may write NodeMaintenances and Evacuations can drain its Nodes.
	Missing []string
}

// ApplyBundle applies the bundle to a workload cluster. It keeps an object of the same or a newer bundle version: managers of different
// versions in two management clusters may share a workload cluster. It skips admission policies that the workload cluster does not support.
func ApplyBundle(ctx context.Context, live client.Client) (Applied, error) {
	objects, err := bundle.Bundle()
	if err != nil {
		return Applied{}, err
	}
	applied := Applied{Established: true}
	for _, each := range findAll(ctx, live, objects) {
		present, err := each.ensure(ctx, live)
		switch {
		case err == nil:
			applied.Established = applied.Established && isEstablished(present)
		case isAdmission(each.wanted) && (meta.IsNoMatchError(err) || apierrors.IsInvalid(err)):
			applied.Missing = append(applied.Missing, each.wanted.GetKind()+" "+each.wanted.GetName())
		default:
			return Applied{}, err
		}
	}
	return applied, nil
}

// found is a wanted object and its present state in the workload cluster.
type found struct {
	wanted, present *unstructured.Unstructured
	err             error
}

// findAll reads the objects concurrently, because the drains of a newly connected cluster wait for it. The objects are written later, in
// their order.
func findAll(ctx context.Context, live client.Client, objects []*unstructured.Unstructured) []found {
	all := make([]found, len(objects))
	var reads sync.WaitGroup
	for i, object := range objects {
		reads.Go(func() {
			present := object.NewEmptyInstance().(*unstructured.Unstructured) //nolint:forcetypeassert // it makes its own kind
			present.SetGroupVersionKind(object.GroupVersionKind())
			all[i] = found{object, present, live.Get(ctx, client.ObjectKeyFromObject(object), present)}
		})
	}
	reads.Wait()
	return all
}

// ensure applies the object if it is missing or older, and returns its state in the workload cluster.
func (f found) ensure(ctx context.Context, live client.Client) (*unstructured.Unstructured, error) {
	switch version := bundleVersion(f.present); {
	case apierrors.IsNotFound(f.err):
		return applyObject(ctx, live, f.wanted)
	case f.err != nil:
		return nil, errors.Wrapf(f.err, "getting %s %s", f.wanted.GetKind(), f.wanted.GetName())
	case version < bundle.BundleVersion:
		return applyObject(ctx, live, f.wanted)
	case version > bundle.BundleVersion:
		ctrl.LoggerFrom(ctx).V(2).Info("A newer bundle is there already, leaving it", f.wanted.GetKind(), f.wanted.GetName(), "version", version)
	}
	return f.present, nil
}

func isAdmission(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind().Group == admissionregistrationv1.GroupName
}

func applyObject(ctx context.Context, live client.Client, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	applied := object.DeepCopy()
	annotations := applied.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.BundleVersionAnnotation] = strconv.Itoa(bundle.BundleVersion)
	applied.SetAnnotations(annotations)
	err := live.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldManager), client.ForceOwnership)
	return applied, errors.Wrapf(err, "applying %s %s", object.GetKind(), object.GetName())
}

// bundleVersion returns the bundle version of an object in a workload cluster, 0 if it has none.
func bundleVersion(object client.Object) int {
	version, err := strconv.Atoi(object.GetAnnotations()[v1alpha1.BundleVersionAnnotation])
	if err != nil {
		return 0
	}
	return version
}

func isEstablished(object *unstructured.Unstructured) bool {
	if object.GetKind() != "CustomResourceDefinition" {
		return true
	}
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, each := range conditions {
		if condition, ok := each.(map[string]any); ok && condition["type"] == string(apiextensionsv1.Established) && condition["status"] == "True" {
			return true
		}
	}
	return false
}
