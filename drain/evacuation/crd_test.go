package evacuation_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/pkg/errors"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/config/workload"
)

// crd validates Evacuations as the API server does, with the schema and the CEL rules of the CRD in the bundle.
type crd struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

var theCRD = sync.OnceValues(func() (*crd, error) {
	objects, err := workload.Bundle()
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" || object.GetName() != "evacuations.maintenance.cluster.x-k8s.io" {
			continue
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, definition); err != nil {
			return nil, err
		}
		return newCRD(definition.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
	return nil, errors.Errorf("the bundle has no CRD of Evacuations")
})

func newCRD(props *apiextensionsv1.JSONSchemaProps) (*crd, error) {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, internal, nil); err != nil {
		return nil, err
	}
	structural, err := schema.NewStructural(internal)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, err
	}
	return &crd{structural: structural, schema: validator, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// validate returns why the API server would refuse a write. old is nil for a create.
func validate(tb testing.TB, e, old *v1alpha1.Evacuation) field.ErrorList {
	tb.Helper()
	c, err := theCRD()
	if err != nil {
		tb.Fatalf("the CRD is not usable: %v", err)
	}
	object := toMap(tb, e)
	errs := validation.ValidateCustomResource(nil, object, c.schema)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, c.structural, object)...)
	var before any
	if old != nil {
		before = toMap(tb, old)
	}
	ruleErrs, _ := c.rules.Validate(context.Background(), nil, c.structural, object, before, celconfig.RuntimeCELCostBudget)
	return append(errs, ruleErrs...)
}

func mustBeValid(tb testing.TB, e, old *v1alpha1.Evacuation) {
	tb.Helper()
	if errs := validate(tb, e, old); len(errs) > 0 {
		tb.Fatalf("the API server would refuse it: %v\n%s", errs.ToAggregate(), toJSON(tb, e))
	}
}

func toMap(tb testing.TB, e *v1alpha1.Evacuation) map[string]any {
	tb.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(e)
	if err != nil {
		tb.Fatal(err)
	}
	return object
}

func toJSON(tb testing.TB, e *v1alpha1.Evacuation) string {
	tb.Helper()
	content, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	return string(content)
}

// stored returns the Evacuation as the API server would return it.
func stored(tb testing.TB, e *v1alpha1.Evacuation) *v1alpha1.Evacuation {
	tb.Helper()
	back := &v1alpha1.Evacuation{}
	if err := json.Unmarshal([]byte(toJSON(tb, e)), back); err != nil {
		tb.Fatal(err)
	}
	return back
}
