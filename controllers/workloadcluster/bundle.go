package workloadcluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// fieldManager is the field owner of the objects of the bundle in workload clusters.
const fieldManager = "capnm-bundle"

// Applied is the state of the bundle in a workload cluster.
type Applied struct {
	// Unserved says which CRD the API server does not serve, and why. It is empty if all CRDs are served.
	Unserved string
	// UnservedSince is when the CRD that is not served was created.
	UnservedSince time.Time
	// Terminating means that a CRD is being deleted.
	Terminating bool
	// Missing are the admission policies and bindings that the workload cluster does not serve, or whose expressions its Kubernetes version
	// does not support. Without them, any user who may write NodeMaintenances and Evacuations can drain its Nodes.
	Missing []string
	// Refused are the requests for policies, bindings and roles that the workload cluster refuses, with its errors. The present objects stay.
	Refused []string
	// Restored are the objects that another actor had deleted or changed.
	Restored []Restored
	// CreatedCRDs means that a CRD was created. Watches of its kind may have failed before.
	CreatedCRDs bool

	hasCRDs bool   // all CRDs existed before
	lacks   string // a CRD that did not exist before, or empty
	// versions are those of the objects of the bundle that are present. isComplete means that none is missing.
	versions   []version
	isComplete bool
}

// version is the resourceVersion of an object.
type version struct {
	kind            schema.GroupVersionKind
	key             client.ObjectKey
	resourceVersion string
}

// IsUnchanged reports whether all objects of the bundle are present and still have the versions in which ApplyBundle has found or written
// them. It is much cheaper than ApplyBundle: the API server answers with metadata from its watch cache, while the CRDs alone have 70 kB.
func (a *Applied) IsUnchanged(ctx context.Context, live client.Client) bool {
	if !a.isComplete {
		return false
	}
	var reads sync.WaitGroup
	unchanged := make([]bool, len(a.versions))
	for i, last := range a.versions {
		reads.Go(func() {
			present := &metav1.PartialObjectMetadata{}
			present.SetGroupVersionKind(last.kind)
			fromCache := &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}}
			err := live.Get(ctx, last.key, present, fromCache) // ApplyBundle handles errors
			unchanged[i] = err == nil && present.ResourceVersion == last.resourceVersion
		})
	}
	reads.Wait()
	return !slices.Contains(unchanged, false)
}

// Restored is an object of the bundle that was restored.
type Restored struct {
	Kind, Name string
	// Change is what the other actor had done: deleted or changed.
	Change string
}

const (
	changeDeleted = "deleted"
	changeChanged = "changed"
)

const (
	crdKind  = "CustomResourceDefinition"
	roleKind = "ClusterRole"
)

// ApplyBundle creates the missing objects of the bundle in a workload cluster, and restores those that another actor has changed. It keeps
// an object of a newer bundle version: managers of different versions in two management clusters may share a workload cluster. It skips
// admission policies that the workload cluster does not support, roles that it refuses, and policies that it refuses although it has the
// CRDs. After an error, the result is what was done before.
func ApplyBundle(ctx context.Context, live client.Client) (Applied, error) {
	objects, err := bundle.Bundle()
	if err != nil {
		return Applied{}, err
	}
	all := findAll(ctx, live, objects)
	applied := Applied{hasCRDs: !slices.ContainsFunc(all, func(f found) bool { return f.wanted.GetKind() == crdKind && f.err != nil })}
	for _, each := range all {
		if each.wanted.GetKind() == crdKind && answers.DoesNotExist(each.err) {
			applied.lacks = each.wanted.GetName()
		}
	}
	installed := slices.ContainsFunc(all, func(f found) bool { return f.err == nil && bundleVersion(f.present) >= bundle.BundleVersion })
	for _, each := range all {
		if err := applied.ensure(ctx, live, each, installed); err != nil {
			return applied, err
		}
	}
	applied.isComplete = len(applied.versions) == len(objects)
	return applied, nil
}

// ensure creates or restores an object of the bundle, and records what it has found. installed means that a bundle was installed before.
func (a *Applied) ensure(ctx context.Context, live client.Client, object found, installed bool) error {
	kind, name := object.wanted.GetKind(), object.wanted.GetName()
	present, change, err := object.ensure(ctx, live)
	if err != nil {
		return a.observeFailure(ctx, object.wanted, change, err)
	}
	if change != "" && installed {
		a.Restored = append(a.Restored, Restored{Kind: kind, Name: name, Change: change})
	}
	a.versions = append(a.versions, version{object.wanted.GroupVersionKind(), client.ObjectKeyFromObject(object.wanted), present.GetResourceVersion()})
	if kind != crdKind {
		return nil
	}
	a.CreatedCRDs = a.CreatedCRDs || change == changeDeleted
	return a.observeCRD(ctx, live, present)
}

// observeFailure records why an object could not be created or updated. It returns nil if drains continue all the same.
func (a *Applied) observeFailure(ctx context.Context, wanted *unstructured.Unstructured, change string, err error) error {
	kind, name := wanted.GetKind(), wanted.GetName()
	switch {
	case isAdmission(wanted) && (meta.IsNoMatchError(err) || isInvalid(err)):
		a.Missing = append(a.Missing, kind+" "+name)
		return nil
	case isRefusal(err) && a.isOptional(wanted):
		ctrl.LoggerFrom(ctx).Error(err, "The workload cluster refuses an object of the bundle. The next check tries again", "kind", kind, "name", name)
		a.Refused = append(a.Refused, progress.Describe(err))
		return nil
	case change == changeDeleted && kind == crdKind:
		a.Unserved = missing(name, err)
	case isAdmission(wanted) && a.lacks != "" && isRefusal(err): // the CRD is not created before
		a.Unserved = missing(a.lacks, err)
	}
	return err
}

func missing(crd string, err error) string {
	return fmt.Sprintf("%s %s is missing in the workload cluster and cannot be created: %s", crdKind, crd, progress.Describe(err))
}

// isOptional reports whether drains continue without the wanted version of an object. Admission policies are optional only where the CRDs
// exist: there, users can write the objects all the same.
func (a *Applied) isOptional(object *unstructured.Unstructured) bool {
	return object.GetKind() == roleKind || isAdmission(object) && a.hasCRDs
}

// unservedAfter returns what the conditions of draining Machines say after the bundle was applied, or failed to be. changed is false if
// they still say the same. A failure matters in the first check since the workload cluster was connected: until one succeeds, its drains
// cannot be observed. A conflict ends with the next check.
func (a *Applied) unservedAfter(failure error, isFirst bool) (unserved string, changed bool) {
	switch {
	case failure == nil || a.Unserved != "":
		return a.Unserved, true
	case isFirst && !answers.IsConflict(failure) && !workload.IsNotConnected(failure):
		return "The bundle cannot be installed in the workload cluster: " + progress.Describe(failure), true
	default:
		return "", false
	}
}

// observeCRD records whether a CustomResourceDefinition is being deleted, and the first reason why one is not served.
func (a *Applied) observeCRD(ctx context.Context, live client.Client, crd *unstructured.Unstructured) error {
	unserved, err := whyUnserved(ctx, live, crd)
	if err != nil {
		return err
	}
	a.Terminating = a.Terminating || crd.GetDeletionTimestamp() != nil
	if a.Unserved == "" {
		a.Unserved, a.UnservedSince = unserved, crd.GetCreationTimestamp().Time
	}
	return nil
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

// ensure creates the object if it is missing, and updates it if it is older or differs. It returns the state of the object in the workload
// cluster, and what another actor had done to it, provided that the bundle was installed before. An object that is being deleted is
// recreated when it is gone.
func (f found) ensure(ctx context.Context, live client.Client) (present *unstructured.Unstructured, change string, err error) {
	name, version := f.wanted.GetKind()+" "+f.wanted.GetName(), bundleVersion(f.present)
	wanted := f.wanted.DeepCopy()
	switch {
	case apierrors.IsNotFound(f.err):
		setBundleVersion(wanted)
		err := live.Create(ctx, wanted, client.FieldOwner(fieldManager))
		if answers.AlreadyExists(err) { // another manager created it a moment ago: that is no refusal
			return nil, "", errors.Wrapf(apierrors.NewConflict(schema.GroupResource{Resource: f.wanted.GetKind()}, f.wanted.GetName(), err), "creating %s", name)
		}
		return wanted, changeDeleted, errors.Wrapf(err, "creating %s", name)
	case f.err != nil:
		return nil, "", errors.Wrapf(f.err, "getting %s", name)
	case version > bundle.BundleVersion:
		ctrl.LoggerFrom(ctx).V(2).Info("Keeping the object of a newer bundle", "kind", f.wanted.GetKind(), "name", f.wanted.GetName(), "version", version)
		return f.present, "", nil
	case f.present.GetDeletionTimestamp() != nil, version == bundle.BundleVersion && !differs(f.wanted, f.present):
		return f.present, "", nil
	}
	copyMetadata(wanted, f.present)
	setBundleVersion(wanted)
	if err := live.Update(ctx, wanted, client.FieldOwner(fieldManager)); err != nil {
		return nil, "", errors.Wrapf(err, "updating %s", name)
	}
	isOlder := version > 0 && version < bundle.BundleVersion                       // one without a version was replaced
	if !isOlder && wanted.GetResourceVersion() != f.present.GetResourceVersion() { // equal: they differ by a default
		change = changeChanged
	}
	return wanted, change, nil
}

// copyMetadata sets the metadata of the wanted object to that of the present one, with the wanted labels and annotations.
func copyMetadata(wanted, present *unstructured.Unstructured) {
	ofLabels, ofAnnotations := wanted.GetLabels(), wanted.GetAnnotations()
	wanted.Object["metadata"] = present.DeepCopy().Object["metadata"]
	wanted.SetLabels(labels.Merge(present.GetLabels(), ofLabels))
	wanted.SetAnnotations(labels.Merge(present.GetAnnotations(), ofAnnotations))
}

func setBundleVersion(object *unstructured.Unstructured) {
	object.SetAnnotations(labels.Merge(object.GetAnnotations(), labels.Set{v1alpha1.BundleVersionAnnotation: strconv.Itoa(bundle.BundleVersion)}))
}

// isRefusal reports whether the API server refuses a write, so that it does not help to repeat it at once.
func isRefusal(err error) bool {
	return err != nil && !answers.IsConflict(err) && !answers.IsUnanswered(err) && !workload.IsNotConnected(err)
}

// isInvalid reports whether the API server finds the object itself invalid. A webhook may answer as if it were.
func isInvalid(err error) bool { return apierrors.IsInvalid(err) && !answers.IsDeniedByWebhook(err) }

func isAdmission(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind().Group == admissionregistrationv1.GroupName
}

// bundleVersion returns the bundle version of an object in a workload cluster, 0 if it has none.
func bundleVersion(object client.Object) int {
	version, err := strconv.Atoi(object.GetAnnotations()[v1alpha1.BundleVersionAnnotation])
	if err != nil {
		return 0
	}
	return version
}

// whyUnserved returns why the API server does not serve a CRD, and "" if it does. If the CRD is being deleted, whyUnserved withdraws the
// requests of NodeMaintenances from its Evacuations: those finalizers would block the deletion until the Pods are gone, and meanwhile no
// Evacuation can be created. NodeMaintenances need no help, because their controller completes deleted ones.
func whyUnserved(ctx context.Context, live client.Client, crd *unstructured.Unstructured) (string, error) {
	if crd.GetDeletionTimestamp() == nil {
		if isEstablished(crd) {
			return "", nil
		}
		return fmt.Sprintf("Waiting for the API server to serve CustomResourceDefinition %s", crd.GetName()), nil
	}
	kind, _, err := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	if err != nil {
		return "", errors.Wrapf(err, "reading CustomResourceDefinition %s", crd.GetName())
	}
	remaining := &unstructured.UnstructuredList{}
	remaining.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
	if err := live.List(ctx, remaining, client.Limit(remainingLimit)); err != nil && !apierrors.IsNotFound(err) {
		return "", errors.Wrapf(err, "listing the objects of the deleted CustomResourceDefinition %s", crd.GetName())
	}
	blocking := ""
	for i := range remaining.Items {
		object := &remaining.Items[i]
		before := object.DeepCopy()
		if object.GetDeletionTimestamp() != nil && controllerutil.RemoveFinalizer(object, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			err := live.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
			switch err = answers.IgnoreDoesNotExist(err); {
			case isRefusal(err): // it does not delay the others
				ctrl.LoggerFrom(ctx).Error(err, "Failed to withdraw", "kind", kind, "object", klog.KObj(object))
				object = before
			case err != nil:
				return "", errors.Wrapf(err, "withdrawing from %s %s", kind, client.ObjectKeyFromObject(object))
			}
		}
		if finalizers := object.GetFinalizers(); blocking == "" && len(finalizers) > 0 {
			blocking = fmt.Sprintf(", which waits for the finalizers of %s %s: %s", kind, strings.TrimPrefix(client.ObjectKeyFromObject(object).String(), "/"),
				text.List(finalizers, namedFinalizers))
		}
	}
	return fmt.Sprintf("Waiting for the deletion of CustomResourceDefinition %s by another actor to complete%s. It is recreated afterwards", crd.GetName(),
		blocking), nil
}

const (
	// remainingLimit bounds the objects of a deleted CRD that one check reads.
	remainingLimit = 500
	// namedFinalizers is how many finalizers of one of them the condition of a Machine names. Tenants may add many.
	namedFinalizers = 3
)

func isEstablished(crd *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
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
