package apiserver

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// now returns the time of the server in the precision of the API.
func (s *Server) now() metav1.Time {
	return metav1.NewTime(time.Now().Add(time.Duration(s.clockOff.Load())).Truncate(time.Second))
}

// operation is a request with its options.
type operation struct {
	Request
	dryRun  bool
	marks   bool   // the first write of a deletion, which removes nothing
	manager string // of an apply
}

func (r operation) key() string { return cache.NewObjectName(r.Namespace, r.Name).String() }

// mutate writes what change returns for the present object: the next one, or the present one itself for no write. It removes one that is
// ready for it, and returns it as change has. change is called again if another write comes between.
func (s *Server) mutate(r operation, k *resource, change func(old *version) (client.Object, error)) (*version, error) {
	for {
		if s.resource(k.gvr) != k {
			return nil, k.notFound(r.Name)
		}
		old := s.get(k, r.key())
		object, err := change(old)
		if err != nil {
			return nil, err
		}
		removes := !r.marks && isRemovable(object)
		if old != nil && object != old.object {
			object.SetResourceVersion(old.object.GetResourceVersion())
		}
		if old != nil && !removes && Equal(old.object, object) {
			return old, nil
		}
		next := &version{resource: k, key: r.key(), object: object}
		if r.dryRun {
			return next, nil
		}
		if removes {
			object = nil
		}
		if stored, ok := s.commit(k, r.key(), old, object); ok && removes {
			return next, nil
		} else if ok {
			return stored, nil
		}
	}
}

// mutateExisting is mutate for an object that must exist.
func (s *Server) mutateExisting(r operation, k *resource, change func(old *version) (client.Object, error)) (*version, error) {
	return s.mutate(r, k, func(old *version) (client.Object, error) {
		if old == nil {
			return nil, k.notFound(r.Name)
		}
		return change(old)
	})
}

// create stores a new object. The server owns it from then on.
func (s *Server) create(r operation, k *resource, object client.Object) (*version, error) {
	if object.GetResourceVersion() != "" {
		return nil, internalError("resourceVersion should not be set on objects to be created")
	}
	if !k.namespaced {
		object.SetNamespace("")
	} else if object.GetNamespace() == "" {
		object.SetNamespace(r.Namespace)
	}
	if object.GetNamespace() != r.Namespace {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if k.namespaced && r.Namespace == "" {
		return nil, apierrors.NewBadRequest("an empty namespace may not be set during creation")
	}
	if r.Name = object.GetName(); r.Name == "" && object.GetGenerateName() != "" {
		r.Name = s.generateName(object.GetGenerateName())
		object.SetName(r.Name)
	}
	if r.Name == "" {
		return nil, apierrors.NewInvalid(k.gvk().GroupKind(), "", field.ErrorList{
			field.Required(field.NewPath("metadata", "name"), "name or generateName is required"),
		})
	}
	object, err := s.prepareCreate(k, object)
	if err != nil {
		return nil, err
	}
	return s.mutate(r, k, func(old *version) (client.Object, error) {
		if old == nil {
			return object, nil
		}
		err := apierrors.NewAlreadyExists(k.gvr.GroupResource(), r.Name)
		if old.object.GetDeletionTimestamp() != nil {
			err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
		}
		return nil, err
	})
}

func (s *Server) prepareCreate(k *resource, object client.Object) (client.Object, error) {
	object.GetObjectKind().SetGroupVersionKind(k.gvk())
	object, err := s.applyDefaults(k, "", object)
	if err != nil {
		return nil, err
	}
	object.SetUID(s.newUID())
	object.SetCreationTimestamp(s.now())
	object.SetDeletionTimestamp(nil)
	object.SetDeletionGracePeriodSeconds(nil)
	object.SetGeneration(0)
	if k.generation {
		object.SetGeneration(1)
	}
	object.SetManagedFields(nil)
	if k.status && k.gvr.Resource != "nodes" { // a kubelet creates its Node with its status
		setStatus(object, s.newObject(k))
	}
	applyBuiltInDefaults(object)
	return s.establish(k, object)
}

// update replaces an object, or its status.
func (s *Server) update(r operation, k *resource, object client.Object) (*version, error) {
	return s.mutateExisting(r, k, func(old *version) (client.Object, error) {
		return s.replace(r, k, old, object.DeepCopyObject().(client.Object))
	})
}

// replace returns what is stored when an object is replaced by another.
func (s *Server) replace(r operation, k *resource, old *version, object client.Object) (client.Object, error) {
	present := old.object
	if r.Subresource == "scale" {
		return replaceScale(k, present, object)
	}
	if err := checkReplacement(r, k, present, object); err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(k.gvk())
	object, err := s.applyDefaults(k, r.Subresource, object)
	if err != nil {
		return nil, err
	}
	if r.Subresource == "status" {
		return withStatus(k, present, object), nil
	}
	keepSystemFields(k, present, object)
	countGeneration(k, present, object)
	return object, checkFinalizers(r, k, present, object)
}

// countGeneration increments the generation of an object whose spec has changed, or the annotations of a Deployment.
func countGeneration(k *resource, present, object client.Object) {
	_, isDeployment := object.(*appsv1.Deployment)
	if k.generation && (!sameSpec(present, object) || isDeployment && !maps.Equal(present.GetAnnotations(), object.GetAnnotations())) {
		object.SetGeneration(present.GetGeneration() + 1)
	}
}

// checkReplacement returns an error if the name, UID or resourceVersion of an object does not allow that it replaces the present one.
func checkReplacement(r operation, k *resource, present, object client.Object) error {
	if object.GetName() != r.Name || k.namespaced && object.GetNamespace() != "" && object.GetNamespace() != r.Namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", object.GetName(), r.Name))
	}
	if uid := object.GetUID(); uid != "" && uid != present.GetUID() {
		if r.Verb == "patch" {
			return apierrors.NewInvalid(k.gvk().GroupKind(), r.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable"),
			})
		}
		return apierrors.NewConflict(k.gvr.GroupResource(), r.Name, errors.Errorf(
			"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
				"Precondition failed: UID in precondition: %s, UID in object meta: %s", k.keyPrefix+r.key(), uid, present.GetUID()))
	}
	resourceVersion := object.GetResourceVersion()
	if resourceVersion == "" && k.custom && r.Verb == "update" {
		return apierrors.NewInvalid(schema.GroupKind{Group: k.gvr.Group, Kind: k.gvr.Resource}, r.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
		})
	}
	if resourceVersion != "" && resourceVersion != present.GetResourceVersion() {
		return apierrors.NewConflict(k.gvr.GroupResource(), r.Name,
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// withStatus returns the present object with what an update of its status may change.
func withStatus(k *resource, present, object client.Object) client.Object {
	updated := shallowCopy(present)
	setStatus(updated, object)
	if !k.custom {
		updated.SetLabels(object.GetLabels())
		updated.SetAnnotations(object.GetAnnotations())
		updated.SetFinalizers(object.GetFinalizers())
	}
	return updated
}

// keepSystemFields sets what an update may not change to that of the present object.
func keepSystemFields(k *resource, present, object client.Object) {
	object.SetNamespace(present.GetNamespace())
	object.SetUID(present.GetUID())
	object.SetCreationTimestamp(present.GetCreationTimestamp())
	object.SetDeletionTimestamp(present.GetDeletionTimestamp())
	object.SetDeletionGracePeriodSeconds(present.GetDeletionGracePeriodSeconds())
	object.SetGeneration(present.GetGeneration())
	object.SetGenerateName(present.GetGenerateName())
	object.SetManagedFields(nil)
	if k.status {
		setStatus(object, present)
	}
}

// checkFinalizers returns an error if an object that is being deleted has new finalizers.
func checkFinalizers(r operation, k *resource, present, object client.Object) error {
	if present.GetDeletionTimestamp() == nil {
		return nil
	}
	for _, finalizer := range object.GetFinalizers() {
		if !slices.Contains(present.GetFinalizers(), finalizer) {
			return apierrors.NewInvalid(k.gvk().GroupKind(), r.Name, field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers"),
				"no new finalizers can be added if the object is being deleted, found new finalizers []string{\""+finalizer+"\"}")})
		}
	}
	return nil
}

// isRemovable returns whether an object is deleted and has neither finalizers nor a grace period.
func isRemovable(object client.Object) bool {
	return object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 && ptr.Deref(object.GetDeletionGracePeriodSeconds(), 0) == 0
}

// delete removes an object, or marks it for deletion. It returns the object that was removed or is marked. A Pod is always marked before
// it is removed, by a separate write.
func (s *Server) delete(r operation, k *resource, options *metav1.DeleteOptions) (*version, error) {
	marking := r
	marking.marks = k.gvr.Resource == "pods"
	marked, err := s.mark(marking, k, options)
	if err != nil || !marking.marks || r.dryRun || !isRemovable(marked.object) {
		return marked, err
	}
	_, err = s.mutateExisting(r, k, func(old *version) (client.Object, error) { return old.object, nil })
	return marked, client.IgnoreNotFound(err)
}

func (s *Server) mark(r operation, k *resource, options *metav1.DeleteOptions) (*version, error) {
	return s.mutateExisting(r, k, func(old *version) (client.Object, error) {
		present := old.object
		if err := checkPreconditions(k, present, options.Preconditions); err != nil {
			return nil, err
		}
		object, begin := shallowCopy(present), s.now().Time
		grace := gracePeriod(present, options)
		if present.GetDeletionTimestamp() != nil {
			before := ptr.Deref(present.GetDeletionGracePeriodSeconds(), 0)
			if before <= grace || options.GracePeriodSeconds == nil { // a later deletion may only shorten the grace period
				return present, nil
			}
			begin = present.GetDeletionTimestamp().Add(-time.Duration(before) * time.Second)
		} else if k.generation {
			object.SetGeneration(object.GetGeneration() + 1)
		}
		object.SetDeletionTimestamp(ptr.To(metav1.NewTime(begin.Add(time.Duration(grace) * time.Second))))
		object.SetDeletionGracePeriodSeconds(&grace)
		return object, nil
	})
}

// gracePeriod returns how long a Pod may take to terminate, in seconds; other objects are deleted at once.
func gracePeriod(object client.Object, options *metav1.DeleteOptions) int64 {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || rules.Finished(pod) {
		return 0
	}
	grace := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if options.GracePeriodSeconds != nil {
		grace = *options.GracePeriodSeconds
	}
	if grace < 0 {
		return 1
	}
	return grace
}

func checkPreconditions(k *resource, object client.Object, preconditions *metav1.Preconditions) error {
	if preconditions == nil {
		return nil
	}
	gk := schema.GroupResource{Group: k.gvr.Group, Resource: k.kind} // as in the message of a real API server
	if uid := ptr.Deref(preconditions.UID, ""); uid != "" && uid != object.GetUID() {
		return apierrors.NewConflict(gk, object.GetName(), errors.Errorf("the UID in the precondition (%s) does not match the UID "+
			"in record (%s). The object might have been deleted and then recreated", uid, object.GetUID()))
	}
	if required := ptr.Deref(preconditions.ResourceVersion, ""); required != "" && required != object.GetResourceVersion() {
		return apierrors.NewConflict(gk, object.GetName(), errors.Errorf("the ResourceVersion in the precondition (%s) does not "+
			"match the ResourceVersion in record (%s). The object might have been modified", required, object.GetResourceVersion()))
	}
	return nil
}

// deleteAll deletes the objects that a selector selects, and returns them.
func (s *Server) deleteAll(r operation, k *resource, selector selector, options *metav1.DeleteOptions) ([]*version, error) {
	objects, _ := s.list(k, selector)
	for _, v := range objects {
		r.Namespace, r.Name = v.object.GetNamespace(), v.object.GetName()
		if _, err := s.delete(r, k, options); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return objects, nil
}

// setStatus sets the status of an object to that of another one, with which it shares it then.
func setStatus(object, from client.Object) {
	if into, ok := object.(*unstructured.Unstructured); ok {
		content, _ := from.(*unstructured.Unstructured)
		if status, exists := content.Object["status"]; exists {
			into.Object["status"] = status
		} else {
			delete(into.Object, "status")
		}
		return
	}
	if status := reflect.ValueOf(object).Elem().FieldByName("Status"); status.IsValid() {
		status.Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	}
}

// sameSpec returns whether two objects differ at most in metadata and status, for the generation.
func sameSpec(a, b client.Object) bool {
	if content, ok := a.(*unstructured.Unstructured); ok {
		other, _ := b.(*unstructured.Unstructured)
		return Equal(specOf(content.Object), specOf(other.Object))
	}
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		switch x.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !same(x.Field(i), y.Field(i)) {
			return false
		}
	}
	return true
}

func specOf(content map[string]any) map[string]any {
	spec := map[string]any{}
	for key, value := range content {
		switch key {
		case "apiVersion", "kind", "metadata", "status":
		default:
			spec[key] = value
		}
	}
	return spec
}

// appliedKey identifies what a manager has applied to an object.
type appliedKey struct {
	uid                  types.UID
	manager, subresource string
}
