package workloadcluster

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	bundle "github.com/capnm/cluster-api-node-maintenance/config/workload"
)

func TestWithImages(t *testing.T) {
	t.Run("S18: updates the image of the node agent, and keeps other changes of its DaemonSet", func(t *testing.T) {
		g := NewWithT(t)
		daemonSet := func(image string) *unstructured.Unstructured {
			objects, err := bundle.NodeAgent(image)
			g.Expect(err).NotTo(HaveOccurred())
			return objects[len(objects)-1]
		}
		present := daemonSet("agent:v1")
		g.Expect(withImages(daemonSet("agent:v1"), present)).To(BeNil())
		g.Expect(unstructured.SetNestedField(present.Object, true, "spec", "template", "spec", "hostNetwork")).To(Succeed())
		updated := withImages(daemonSet("agent:v2"), present)
		g.Expect(containersOf(updated)).To(HaveEach(HaveKeyWithValue("image", "agent:v2")))
		g.Expect(containersOf(present)).To(HaveEach(HaveKeyWithValue("image", "agent:v1")))
		g.Expect(withImages(daemonSet("agent:v2"), updated)).To(BeNil())
		kept, _, err := unstructured.NestedBool(updated.Object, "spec", "template", "spec", "hostNetwork")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kept).To(BeTrue())
		for _, container := range containersOf(present) {
			container["name"] = map[string]any{"not": "a name"}
		}
		g.Expect(withImages(daemonSet("agent:v2"), present)).To(BeNil())
	})
}

func TestDiffers(t *testing.T) {
	objects, err := bundle.Bundle()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	policy := objects[0]
	for name, test := range map[string]struct {
		change  func(present *unstructured.Unstructured)
		differs bool
	}{
		"M51: an unchanged object": {func(*unstructured.Unstructured) {}, false},
		"M51: metadata and status of other actors": {func(present *unstructured.Unstructured) {
			present.SetLabels(map[string]string{"a": "b"})
			present.SetAnnotations(map[string]string{"a": "b"})
			present.SetUID("1")
			present.Object["status"] = map[string]any{"observedGeneration": int64(1)}
		}, false},
		"M51: a default":                  {set("Equivalent", "spec", "matchConstraints", "matchPolicy"), false},
		"M51: a value that is no default": {set("Exact", "spec", "matchConstraints", "matchPolicy"), true},
		"M51: a selector that excludes namespaces": {
			set(map[string]any{"matchLabels": map[string]any{"a": "b"}}, "spec", "matchConstraints", "namespaceSelector"), true,
		},
		"M51: a changed value": {set("Ignore", "spec", "failurePolicy"), true},
		"M51: an added field":  {set(map[string]any{"kind": "ConfigMap"}, "spec", "paramKind"), true},
		"M51: an added entry of a list": {func(present *unstructured.Unstructured) {
			conditions, _, _ := unstructured.NestedSlice(present.Object, "spec", "matchConditions")
			set(append(conditions, map[string]any{"name": "never", "expression": "false"}), "spec", "matchConditions")(present)
		}, true},
		"M51: a removed field": {func(present *unstructured.Unstructured) {
			unstructured.RemoveNestedField(present.Object, "spec", "validations")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			present := policy.DeepCopy()
			test.change(present)
			NewWithT(t).Expect(differs(policy, present)).To(Equal(test.differs))
		})
	}
}

func set(value any, fields ...string) func(*unstructured.Unstructured) {
	return func(present *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(present.Object, value, fields...); err != nil {
			panic(err)
		}
	}
}
