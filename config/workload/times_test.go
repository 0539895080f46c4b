package workload_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// A schema cannot say that a time is one that Go parses. TestAdmission in test/integration shows what the format date-time lets through.
func TestTimesHaveARule(t *testing.T) { // R62
	var files []string
	for _, directory := range []string{"crd", "../crd/bases"} {
		found, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			crd := &apiextensionsv1.CustomResourceDefinition{}
			g.Expect(yaml.Unmarshal(content, crd)).To(Succeed())
			g.Expect(timesWithoutRule(*crd.Spec.Versions[0].Schema.OpenAPIV3Schema, "", nil)).To(BeEmpty(),
				"add the rule of another time in api/v1alpha1 to these fields")
		})
	}
}

// timesWithoutRule returns the times of a schema for which neither the time nor its parent has a rule.
func timesWithoutRule(schema apiextensionsv1.JSONSchemaProps, path string, rules apiextensionsv1.ValidationRules) []string {
	if schema.Format == "date-time" {
		for _, rule := range append(rules, schema.XValidations...) {
			if strings.Contains(rule.Rule, "timestamp('1970-01-01T00:00:00Z')") {
				return nil
			}
		}
		return []string{path}
	}
	var without []string
	if schema.Items != nil {
		without = timesWithoutRule(*schema.Items.Schema, path+"[]", nil)
	}
	for name, property := range schema.Properties {
		without = append(without, timesWithoutRule(property, path+"."+name, schema.XValidations)...)
	}
	return without
}
