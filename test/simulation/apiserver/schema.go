package apiserver

import (
	"reflect"
	"sync"

	"github.com/pkg/errors"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// customSchema is the structural schema of a custom resource.
type customSchema struct {
	source     *apiextensionsv1.CustomResourceValidation
	structural *structuralschema.Structural
	defaults   bool // it has any
	ofStatus   bool // it has any in a status that is not empty
}

// schemas caches the parsed schemas by kind: many servers in a row define the same kinds, and parsing takes longer than a simulation.
var schemas sync.Map

// schemaOf returns the schema of a custom resource.
func (s *Server) schemaOf(k *resource) (*customSchema, error) {
	s.mu.Lock()
	parsed, validation := k.schema, k.validation
	s.mu.Unlock()
	if parsed != nil {
		return parsed, nil
	}
	if validation == nil || validation.OpenAPIV3Schema == nil {
		return &customSchema{}, nil
	}
	known, _ := schemas.Load(k.gvk())
	parsed, _ = known.(*customSchema)
	if parsed == nil || !reflect.DeepEqual(parsed.source, validation) {
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(validation.OpenAPIV3Schema, internal, nil); err != nil {
			return nil, errors.WithStack(err)
		}
		structural, err := structuralschema.NewStructural(internal)
		if err != nil {
			return nil, errors.Wrapf(err, "schema of %s", k.gvk())
		}
		status := structural.Properties["status"]
		status.Default.Object = nil
		parsed = &customSchema{validation, structural, hasDefaults(structural), hasDefaults(&status)}
		schemas.Store(k.gvk(), parsed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.validation == validation {
		k.schema = parsed
	}
	return parsed, nil
}

func hasDefaults(schema *structuralschema.Structural) bool {
	if schema == nil {
		return false
	}
	if schema.Default.Object != nil || hasDefaults(schema.Items) {
		return true
	}
	for _, property := range schema.Properties {
		if hasDefaults(&property) {
			return true
		}
	}
	return schema.AdditionalProperties != nil && hasDefaults(schema.AdditionalProperties.Structural)
}

// hasStatus returns whether the status of an object of a Go type is not empty.
func hasStatus(object client.Object) bool {
	status := reflect.ValueOf(object).Elem().FieldByName("Status")
	return status.IsValid() && !status.IsZero()
}

// applyDefaults returns a custom resource with the defaults of its schema. Of the subresource status, only the status is stored.
func (s *Server) applyDefaults(k *resource, subresource string, object client.Object) (client.Object, error) {
	if !k.custom {
		return object, nil
	}
	schema, err := s.schemaOf(k)
	if err != nil || !schema.defaults || subresource == "status" && !schema.ofStatus && hasStatus(object) {
		return object, err
	}
	content, err := toContent(object)
	if err != nil {
		return nil, err
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(content, schema.structural)
	defaulting.Default(content, schema.structural)
	return s.fromContent(k, content)
}
