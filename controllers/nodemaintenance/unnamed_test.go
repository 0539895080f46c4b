package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// The API server accepts an empty name in a nodeSelector, for example of a template whose variable is not set.
func TestEmptyNameOfANode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
	unnamed := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "unnamed"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("one", "")},
	}
	reader := fakes.Builder(node, unnamed).WithIndex(unnamed, "node", func(object client.Object) []string {
		return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance))
	}).Build()
	t.Run("R8, E76: no Node has the empty name, and the others are selected", func(t *testing.T) {
		g := NewWithT(t)
		nodes, err := selectedNodes(t.Context(), reader, unnamed)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nodeNames(nodes)).To(ConsistOf("one"))
	})
	t.Run("R8, E76: a NodeMaintenance that names an empty Node ends no reconciliation of another one that shares a Node with it", func(t *testing.T) {
		g := NewWithT(t)
		machines := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "of-a-machine"}, Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("one"),
		}}
		s := &scope{client: reader, maintenance: machines, before: machines.DeepCopy(), nodes: []*corev1.Node{node}, now: time.Now()}
		g.Expect(findNeighbours(t.Context(), s)).To(Succeed())
	})
}
