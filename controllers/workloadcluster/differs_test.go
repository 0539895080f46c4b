package workloadcluster

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
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

func TestWithChanges(t *testing.T) {
	// upgrade returns the spec of the DaemonSet when the bundle replaces an earlier version, which users have changed, by the present one.
	upgrade := func(g Gomega, users func(*appsv1.DaemonSetSpec), annotate func(*unstructured.Unstructured)) appsv1.DaemonSetSpec {
		objects, err := bundle.NodeAgent("agent:v2")
		g.Expect(err).NotTo(HaveOccurred())
		manifest := objects[len(objects)-1]
		earlier := manifest.DeepCopy()
		g.Expect(edit(earlier, func(spec *appsv1.DaemonSetSpec) { // as if the present version had added and changed these
			spec.Template.Spec.Containers[0].Image = "agent:v1"
			spec.Template.Spec.Volumes = slices.DeleteFunc(spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "crio" })
			spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
		})).To(Succeed())
		present, err := withChanges(earlier, &unstructured.Unstructured{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(edit(present, users)).To(Succeed())
		annotate(present)
		upgraded, err := withChanges(manifest, present)
		g.Expect(err).NotTo(HaveOccurred())
		again, err := withChanges(manifest, upgraded)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again).To(Equal(upgraded))
		spec := appsv1.DaemonSetSpec{}
		g.Expect(edit(upgraded, func(s *appsv1.DaemonSetSpec) { spec = *s })).To(Succeed())
		return spec
	}
	users := func(spec *appsv1.DaemonSetSpec) {
		pod := &spec.Template.Spec
		pod.Containers[0].Args = []string{"--container-runtime=/run/k3s/containerd/containerd.sock"}
		pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "MINE", Value: "kept"})
		for i, volume := range pod.Volumes {
			if volume.Name == "static-pods" {
				pod.Volumes[i].HostPath.Path = "/etc/kubelet.d"
			}
		}
		pod.NodeSelector = map[string]string{"agent": "yes"}
		pod.Tolerations = []corev1.Toleration{{Key: "mine", Operator: corev1.TolerationOpExists}}
		pod.TerminationGracePeriodSeconds = ptr.To[int64](60)
	}
	volume := func(name, path string) OmegaMatcher {
		return ContainElement(And(HaveField("Name", name), HaveField("HostPath.Path", path)))
	}
	t.Run("S18: a new version of the bundle keeps what users have changed in the DaemonSet, except for fields that the version changes", func(t *testing.T) {
		g := NewWithT(t)
		pod := upgrade(g, users, func(*unstructured.Unstructured) {}).Template.Spec
		g.Expect(pod.Containers[0].Args).To(ConsistOf("--container-runtime=/run/k3s/containerd/containerd.sock"))
		g.Expect(pod.Containers[0].Env).To(ContainElement(HaveField("Name", "MINE")))
		g.Expect(pod.Volumes).To(volume("static-pods", "/etc/kubelet.d"))
		g.Expect(pod.NodeSelector).To(Equal(map[string]string{"agent": "yes"}))
		g.Expect(pod.Tolerations).To(ConsistOf(HaveField("Key", "mine")))
		g.Expect(pod.Volumes).To(volume("crio", "/run/crio"), "the new version has added it")
		g.Expect(pod.Containers).To(HaveEach(HaveField("Image", "agent:v2")))
		g.Expect(pod.TerminationGracePeriodSeconds).To(HaveValue(BeEquivalentTo(5)), "the new version has changed it")
	})
	for name, recorded := range map[string]string{"nothing": "", "no JSON": "{", "another type": `{"template":[]}`, "null": "null"} {
		t.Run("S18: a new version of the bundle replaces a DaemonSet that records "+name, func(t *testing.T) {
			pod := upgrade(NewWithT(t), users, func(present *unstructured.Unstructured) {
				present.SetAnnotations(map[string]string{v1alpha1.BundleSpecAnnotation: recorded})
			}).Template.Spec
			NewWithT(t).Expect(pod.Volumes).To(volume("crio", "/run/crio"))
		})
	}
}

func edit(daemonSet *unstructured.Unstructured, change func(*appsv1.DaemonSetSpec)) error {
	typed := &appsv1.DaemonSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(daemonSet.Object, typed); err != nil {
		return err
	}
	change(&typed.Spec)
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&typed.Spec)
	daemonSet.Object["spec"] = spec
	return err
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
