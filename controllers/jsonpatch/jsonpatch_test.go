package jsonpatch

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
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

func TestPatchThatIsNotApplied(t *testing.T) {
	ofTest := metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse}
	for name, tc := range map[string]struct {
		answer   error
		conflict bool
	}{
		"R19: a patch whose test fails is a conflict": {
			apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", corev1.Resource("nodes"), "n", "testing value", 0, true), true,
		},
		"E64: a webhook that answers as if a test had failed refuses the patch": {
			fakes.DeniedWith(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, ofTest), false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, before := NewWithT(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
			after := before.DeepCopy()
			after.Spec.Unschedulable = true
			remote := interceptor.NewClient(fakes.Client(), interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return tc.answer
				},
			})
			err := Node(t.Context(), remote, before, after)
			g.Expect(err).To(HaveOccurred())
			g.Expect(answers.IsConflict(err)).To(Equal(tc.conflict))
		})
	}
}
