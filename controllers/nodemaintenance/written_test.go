package nodemaintenance

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWritten(t *testing.T) {
	g := NewWithT(t)
	node := func(uid types.UID, version string, unschedulable bool) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: uid, ResourceVersion: version}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
	}
	cluster, other := types.NamespacedName{Namespace: "fleet", Name: "a"}, types.NamespacedName{Namespace: "fleet", Name: "b"}
	w := newWritten(t.Context())
	g.Expect(w.latest(cluster, node("uid", "9", false)).Spec.Unschedulable).To(BeFalse(), "nothing was written")

	w.note(cluster, node("uid", "10", true))
	g.Expect(w.latest(cluster, node("uid", "9", false)).Spec.Unschedulable).To(BeTrue(), "the watch lags")
	g.Expect(w.latest(cluster, node("uid", "10", true)).Spec.Unschedulable).To(BeTrue())
	g.Expect(w.latest(cluster, node("uid", "11", false)).Spec.Unschedulable).To(BeFalse(), "somebody has written it since")
	g.Expect(w.latest(cluster, node("another", "9", false)).Spec.Unschedulable).To(BeFalse(), "another Node of that name")
	g.Expect(w.latest(other, node("uid", "9", false)).Spec.Unschedulable).To(BeFalse(), "a Node of another workload cluster")
}
