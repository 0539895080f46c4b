package workload_test

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// The manager sets the defaults of the policy of a NodeMaintenance itself, so that it compares equal with what the API server has stored.
func TestDefaultProgressDeadline(t *testing.T) {
	const group = "maintenance.cluster.x-k8s.io_"
	for file, path := range map[string]string{
		"crd/" + group + "evacuations.yaml":                   "spec",
		"crd/" + group + "nodemaintenances.yaml":              "spec.evacuation",
		"../crd/bases/" + group + "machinedrainpolicies.yaml": "spec",
	} {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			crd := &apiextensionsv1.CustomResourceDefinition{}
			g.Expect(yaml.Unmarshal(content, crd)).To(Succeed())
			schema := *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
			for field := range strings.SplitSeq(path, ".") {
				schema = schema.Properties[field]
			}
			deadline := schema.Properties["progressDeadlineSeconds"].Default
			g.Expect(deadline).NotTo(BeNil())
			var seconds int
			g.Expect(yaml.Unmarshal(deadline.Raw, &seconds)).To(Succeed())
			g.Expect(seconds).To(Equal(v1alpha1.DefaultProgressDeadlineSeconds))
		})
	}
}
