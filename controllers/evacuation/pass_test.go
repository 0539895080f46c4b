package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestAwaitCordons(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	maintenance := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "one", CreationTimestamp: metav1.NewTime(created)}}
	maintenance.Spec.Stage = v1alpha1.StageDrain
	maintenance.Spec.NodeSelector.NodeSelectorTerms = []v1alpha1.NodeSelectorTerm{{MatchFields: []v1alpha1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"one"}},
	}}}
	for _, tc := range []struct {
		name string
		node *corev1.Node
		held bool
	}{
		{name: "a Node that is still to be cordoned", node: &corev1.Node{}, held: true},
		{name: "one that is", node: &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}},
		{name: "one that is gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			known := fake.NewClientBuilder()
			if tc.node != nil {
				tc.node.Name = "one"
				known.WithObjects(tc.node)
			}
			p := &pass{client: known.Build(), now: created.Add(time.Second)}
			g.Expect(p.awaitCordons(t.Context(), []v1alpha1.NodeMaintenance{maintenance})).To(Succeed())
			g.Expect(p.held).To(Equal(tc.held))
			g.Expect(p.nextTry.IsZero()).To(Equal(!tc.held), "a cordon that never comes brings no event")
		})
	}
}
