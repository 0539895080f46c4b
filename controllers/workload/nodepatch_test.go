package workload

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestNodePatch(t *testing.T) {
	const origin = "/metadata/annotations/maintenance.cluster.x-k8s.io~1"
	found := v1alpha1.NodeOriginAnnotation
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{"a": "1"}, Labels: map[string]string{"l": "1"}}}
		change(n)
		return n
	}
	taint := corev1.Taint{Key: "t", Effect: corev1.TaintEffectNoSchedule}
	for _, test := range []struct {
		name          string
		before, after *corev1.Node
		want          string
	}{
		{
			"requires that a Node to cordon is schedulable and has no record",
			node(func(*corev1.Node) {}),
			node(func(n *corev1.Node) { n.Spec.Unschedulable, n.Annotations[found] = true, "schedulable" }),
			`[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/spec/unschedulable","value":null},` +
				`{"op":"test","path":"` + origin + `found","value":null},` +
				`{"op":"add","path":"/spec/unschedulable","value":true},{"op":"add","path":"` + origin + `found","value":"schedulable"}]`,
		},
		{
			"requires that a Node recorded as cordoned is still cordoned",
			node(func(n *corev1.Node) { n.Spec.Unschedulable = true }),
			node(func(n *corev1.Node) { n.Spec.Unschedulable, n.Annotations[found] = true, "unschedulable" }),
			`[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/spec/unschedulable","value":true},` +
				`{"op":"test","path":"` + origin + `found","value":null},{"op":"add","path":"` + origin + `found","value":"unschedulable"}]`,
		},
		{
			"requires that a Node to uncordon still has the record",
			node(func(n *corev1.Node) { n.Spec.Unschedulable, n.Annotations[found] = true, "schedulable" }),
			node(func(*corev1.Node) {}),
			`[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/spec/unschedulable","value":true},` +
				`{"op":"test","path":"` + origin + `found","value":"schedulable"},` +
				`{"op":"remove","path":"/spec/unschedulable","value":null},{"op":"remove","path":"` + origin + `found","value":null}]`,
		},
		{
			"replaces the whole list of taints",
			node(func(*corev1.Node) {}),
			node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }),
			`[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/spec/unschedulable","value":null},` +
				`{"op":"test","path":"/spec/taints","value":null},` +
				`{"op":"test","path":"` + origin + `found","value":null},{"op":"add","path":"/spec/taints","value":[{"key":"t","effect":"NoSchedule"}]}]`,
		},
		{
			"adds the map to a Node without labels",
			node(func(n *corev1.Node) { n.Labels, n.Annotations = nil, nil }),
			node(func(n *corev1.Node) { n.Labels, n.Annotations = map[string]string{"x": "y"}, nil }),
			`[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/spec/unschedulable","value":null},` +
				`{"op":"test","path":"/metadata/labels","value":null},` +
				`{"op":"add","path":"/metadata/labels","value":{"x":"y"}}]`,
		},
	} {
		t.Run("R19: "+test.name, func(t *testing.T) {
			g := NewWithT(t)
			patch, err := json.Marshal(nodePatch(test.before, test.after))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(patch)).To(Equal(test.want))
		})
	}
}
