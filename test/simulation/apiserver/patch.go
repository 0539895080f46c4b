package apiserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"github.com/pkg/errors"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// decodedPatch is a patch of a request.
type decodedPatch struct {
	kind     types.PatchType
	document []byte
	changes  map[string]any // not of a JSON patch
}

// patch changes an object, or a subresource of it, with a patch. An apply creates a missing object; created says so.
func (s *Server) patch(r operation, k *resource, patchType types.PatchType, document []byte) (stored *version, created bool, err error) {
	patch, err := decodePatch(patchType, document)
	if err != nil {
		return nil, false, apierrors.NewBadRequest(err.Error())
	}
	stored, err = s.mutate(r, k, func(old *version) (client.Object, error) {
		if created = old == nil; created {
			return s.applyNew(r, k, patchType, patch.changes)
		}
		return s.replacePatched(r, k, old, patch)
	})
	if err == nil && patchType == types.ApplyYAMLPatchType && !r.dryRun {
		s.mu.Lock()
		s.applied[appliedKey{stored.object.GetUID(), r.manager, r.Subresource}] = patch.changes
		s.mu.Unlock()
	}
	return stored, created, err
}

func decodePatch(patchType types.PatchType, document []byte) (decodedPatch, error) {
	patch := decodedPatch{kind: patchType, document: document}
	if patchType == types.JSONPatchType {
		return patch, nil
	}
	if patchType == types.ApplyYAMLPatchType && !json.Valid(document) {
		var err error
		if patch.document, err = yaml.YAMLToJSON(document); err != nil {
			return patch, errors.WithStack(err)
		}
	}
	return patch, errors.Wrap(utiljson.Unmarshal(patch.document, &patch.changes), "error decoding patch")
}

// replacePatched returns what is stored when an object, or its scale, is replaced by its patched version.
func (s *Server) replacePatched(r operation, k *resource, old *version, patch decodedPatch) (client.Object, error) {
	if patch.kind == types.MergePatchType && r.Subresource != "scale" {
		object, err := s.mergePatched(k, old, patch)
		if err != nil {
			return nil, err
		}
		return s.replace(r, k, old, object)
	}
	var from runtime.Object = old.object
	if r.Subresource == "scale" {
		from = scaleOf(old.object)
	}
	content, err := s.patchContent(r, k, old.object, from, patch)
	if err != nil {
		return nil, err
	}
	var object client.Object
	if r.Subresource == "scale" {
		scale := &scaleType{}
		object, err = scale, runtime.DefaultUnstructuredConverter.FromUnstructured(content, scale)
	} else {
		object, err = s.fromContent(k, content)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s.replace(r, k, old, object)
}

// mergePatched returns an object with a merge patch, which most requests are. Of a Go type, only what the patch names is converted to JSON
// and back.
func (s *Server) mergePatched(k *resource, old *version, patch decodedPatch) (client.Object, error) {
	if fields := fieldsOf(k, patch); fields != nil {
		return mergeFields(old.object, fields)
	}
	document, err := old.encode(format{})
	if err != nil {
		return nil, err
	}
	if document, err = jsonpatch.MergePatch(document, patch.document); err != nil {
		return nil, unprocessable(err)
	}
	object, err := s.fromJSON(k, document)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}

// fieldsOf returns what a merge patch changes of the metadata, spec and status of an object of a Go type. It is nil if the patch changes
// anything else.
func fieldsOf(k *resource, patch decodedPatch) map[string]json.RawMessage {
	for name, value := range patch.changes {
		if _, isObject := value.(map[string]any); !k.typed || !isObject || fieldNames[name] == "" {
			return nil
		}
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(patch.document, &fields); err != nil {
		return nil
	}
	return fields
}

// fieldNames are the names of fields in Go types.
var fieldNames = map[string]string{"metadata": "ObjectMeta", "spec": "Spec", "status": "Status"}

// mergeFields returns an object of a Go type with a merge patch of some fields.
func mergeFields(old client.Object, patches map[string]json.RawMessage) (client.Object, error) {
	object := shallowCopy(old)
	for name, patch := range patches {
		field := reflect.ValueOf(object).Elem().FieldByName(fieldNames[name])
		if !field.IsValid() {
			continue // unknown fields are pruned
		}
		document, err := json.Marshal(field.Interface())
		if err != nil {
			return nil, errors.WithStack(err)
		}
		if document, err = jsonpatch.MergePatch(document, patch); err != nil {
			return nil, unprocessable(err)
		}
		field.SetZero()
		if err := utiljson.Unmarshal(document, field.Addr().Interface()); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	return object, nil
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

// patchContent returns the content of from with a patch. From is the object or its scale.
func (s *Server) patchContent(
	r operation, k *resource, object client.Object, from runtime.Object, patch decodedPatch,
) (map[string]any, error) {
	content, err := toContent(from)
	if err != nil {
		return nil, err
	}
	switch patch.kind { //nolint:exhaustive // CBOR is refused before
	case types.MergePatchType:
		return patchJSON(content, func(document []byte) ([]byte, error) { return jsonpatch.MergePatch(document, patch.document) })
	case types.ApplyYAMLPatchType:
		return content, s.applyTo(r, k, object, content, runtime.DeepCopyJSON(patch.changes))
	case types.StrategicMergePatchType:
		return s.mergeStrategic(k, from, content, runtime.DeepCopyJSON(patch.changes))
	case types.JSONPatchType:
		operations, err := jsonpatch.DecodePatch(patch.document)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return patchJSON(content, operations.Apply)
	}
	return nil, unsupportedMediaType()
}

// unsupportedMediaType returns the error for a patch of a custom resource that is neither of JSON nor an apply.
func unsupportedMediaType() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, " +
			"application/merge-patch+json, application/apply-patch+yaml",
	}}
}

// applyNew returns the object that an apply creates.
func (s *Server) applyNew(r operation, k *resource, patchType types.PatchType, changes map[string]any) (client.Object, error) {
	if patchType != types.ApplyYAMLPatchType || r.Subresource != "" {
		return nil, k.notFound(r.Name)
	}
	object, err := s.fromContent(k, runtime.DeepCopyJSON(changes))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if object.GetUID() != "" || object.GetResourceVersion() != "" {
		return nil, apierrors.NewConflict(k.gvr.GroupResource(), r.Name,
			errors.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", object.GetUID()))
	}
	object.SetName(r.Name)
	object.SetNamespace(r.Namespace)
	return s.prepareCreate(k, object)
}

func (s *Server) mergeStrategic(k *resource, from runtime.Object, content, patch map[string]any) (map[string]any, error) {
	if !k.typed || k.custom {
		return nil, unsupportedMediaType()
	}
	merged, err := strategicpatch.StrategicMergeMapPatch(content, patch, from)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return merged, nil
}

// patchJSON returns the content after a patch of its JSON.
func patchJSON(content map[string]any, apply func(document []byte) ([]byte, error)) (map[string]any, error) {
	document, err := json.Marshal(content)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	if document, err = apply(document); err != nil {
		return nil, unprocessable(err)
	}
	patched := map[string]any{}
	return patched, errors.WithStack(utiljson.Unmarshal(document, &patched))
}

// applyTo merges an applied configuration into an object. Instead of the ownership of fields, it removes from a custom resource what the
// manager applied last and does not apply any more.
func (s *Server) applyTo(r operation, k *resource, object client.Object, content, changes map[string]any) error {
	if k.custom {
		schema, err := s.schemaOf(k)
		if err != nil {
			return err
		}
		s.mu.Lock()
		last := runtime.DeepCopyJSON(s.applied[appliedKey{object.GetUID(), r.manager, r.Subresource}])
		s.mu.Unlock()
		applyMap(content, last, changes, schema.structural)
		return nil
	}
	merged, err := s.mergeStrategic(k, object, content, changes)
	maps.Copy(content, merged)
	return err
}

// applyMap merges an applied map into the content. Lists are merged by their keys if the schema says so, and are replaced otherwise.
func applyMap(content, last, applied map[string]any, schema *structuralschema.Structural) {
	for key, value := range last {
		if _, still := applied[key]; still {
			continue
		}
		fields, isMap := value.(map[string]any)
		present, _ := content[key].(map[string]any)
		if isMap && present != nil {
			if applyMap(present, fields, nil, property(schema, key)); len(present) == 0 {
				delete(content, key)
			}
		} else if list, keys := mergedList(key, content[key], property(schema, key)); list != nil {
			content[key] = applyList(list, toList(value), nil, keys, itemsOf(property(schema, key)))
		} else {
			delete(content, key)
		}
	}
	for key, value := range applied {
		field := property(schema, key)
		switch value := value.(type) {
		case map[string]any:
			present, _ := content[key].(map[string]any)
			if present == nil {
				present = map[string]any{}
				content[key] = present
			}
			before, _ := last[key].(map[string]any)
			applyMap(present, before, value, field)
		case []any:
			if _, keys := mergedList(key, content[key], field); keys != nil {
				content[key] = applyList(toList(content[key]), toList(last[key]), value, keys, itemsOf(field))
			} else {
				content[key] = value
			}
		default:
			content[key] = value
		}
	}
}

// applyList merges the items of a list by their keys; a set has no keys.
func applyList(present, last, applied []any, keys []string, items *structuralschema.Structural) []any {
	index := func(list []any, item any) int {
		return slices.IndexFunc(list, func(other any) bool {
			if len(keys) == 0 {
				return reflect.DeepEqual(item, other)
			}
			a, _ := item.(map[string]any)
			b, _ := other.(map[string]any)
			return !slices.ContainsFunc(keys, func(key string) bool { return !reflect.DeepEqual(a[key], b[key]) })
		})
	}
	merged := slices.DeleteFunc(slices.Clone(present), func(item any) bool { return index(last, item) >= 0 && index(applied, item) < 0 })
	for _, item := range applied {
		i := index(merged, item)
		if i < 0 {
			merged = append(merged, item)
			continue
		}
		into, _ := merged[i].(map[string]any)
		fields, _ := item.(map[string]any)
		if into == nil {
			continue
		}
		before := map[string]any{}
		if j := index(last, item); j >= 0 {
			before, _ = last[j].(map[string]any)
		}
		applyMap(into, before, fields, items)
	}
	return merged
}

// mergedList returns a list and its keys if its schema says that items are merged.
func mergedList(name string, value any, schema *structuralschema.Structural) (list []any, keys []string) {
	if schema == nil {
		switch name { // of the metadata
		case "finalizers":
			return toList(value), []string{}
		case "ownerReferences":
			return toList(value), []string{"uid"}
		}
		return nil, nil
	}
	switch ptr.Deref(schema.XListType, "") {
	case "map":
		return toList(value), schema.XListMapKeys
	case "set":
		return toList(value), []string{}
	}
	return nil, nil
}

func itemsOf(schema *structuralschema.Structural) *structuralschema.Structural {
	if schema == nil {
		return nil
	}
	return schema.Items
}

func toList(value any) []any {
	list, _ := value.([]any)
	return list
}

func property(schema *structuralschema.Structural, name string) *structuralschema.Structural {
	if schema == nil {
		return nil
	}
	if field, ok := schema.Properties[name]; ok {
		return &field
	}
	if schema.AdditionalProperties != nil {
		return schema.AdditionalProperties.Structural
	}
	return nil
}
