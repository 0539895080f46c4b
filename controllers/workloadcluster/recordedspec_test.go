package workloadcluster

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestRecordedSpecThatCannotBeMerged(t *testing.T) {
	container := map[string]any{"name": "agent", "image": "new"}
	specOf := func(container any) map[string]any {
		return map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}}
	}
	for name, recorded := range map[string]string{
		"S18: a recorded spec with null in a list is replaced":     `{"template":{"spec":{"containers":[null]}}}`,
		"S18: a recorded spec with unnamed containers is replaced": `{"template":{"spec":{"containers":[{}]}}}`,
		"S18: a recorded spec that is a directive is replaced":     `{"$patch":"replace"}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			present := &unstructured.Unstructured{Object: map[string]any{"spec": specOf(map[string]any{"name": "agent", "image": "edited"})}}
			present.SetAnnotations(map[string]string{v1alpha1.BundleSpecAnnotation: recorded})
			result, err := withChanges(&unstructured.Unstructured{Object: map[string]any{"spec": specOf(container)}}, present)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.Object["spec"]).To(Equal(specOf(container)))
			g.Expect(result.GetAnnotations()[v1alpha1.BundleSpecAnnotation]).NotTo(Equal(recorded))
		})
	}
}
