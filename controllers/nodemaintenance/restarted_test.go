package nodemaintenance

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// connectedTo is a ClusterCache with a connection to a server.
type connectedTo struct {
	clustercache.ClusterCache
	config *rest.Config
}

func (c connectedTo) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return c.config, nil
}

// A user deletes a NodeMaintenance whose Node is also that of a paused Machine. The withdrawal waits for the first list of the Pods there.
// If the watches restart before it has arrived, because the API server did not answer for a while, no event follows.
func TestWithdrawalBeforePodsAreObserved(t *testing.T) {
	t.Run("R12: a NodeMaintenance that ends waits for the list of Pods no longer than the watch that would deliver it runs", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		t.Cleanup(server.Close)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
		paused := v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: "paused"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, NodeSelector: v1alpha1.SelectNodes("one")},
		}
		ending := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
			Name: "ending", Finalizers: []string{v1alpha1.MaintenanceCompletionFinalizer}, DeletionTimestamp: new(metav1.Now()),
		}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageComplete, NodeSelector: v1alpha1.SelectNodes("one")}}
		remote := fakes.Builder(node, &paused, ending).
			WithIndex(&v1alpha1.Evacuation{}, "node", func(client.Object) []string { return nil }).
			WithIndex(ending, "node", func(object client.Object) []string { return nodeselection.Keys(object.(*v1alpha1.NodeMaintenance)) }).Build()
		management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
		config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
		r := &Reconciler{Clusters: workload.NewClusters(management, connectedTo{clustercache.NewFakeClusterCache(remote, cluster), config}, fakes.Scheme(),
			workload.Limits{}, clock.RealClock{})}
		t.Cleanup(func() { r.Clusters.Disconnect(cluster) })
		request := workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(ending)}
		s := &scope{
			request: request, client: remote, before: ending.DeepCopy(), maintenance: ending, now: time.Now(), nodes: []*corev1.Node{node},
			others: []v1alpha1.NodeMaintenance{paused}, drainedBy: map[string][]*corev1.Node{"paused": {node}}, suspends: sets.New("paused"),
		}
		done, err := r.withdraw(t.Context(), s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(done).To(BeFalse(), "it waits for the Pods of the Node")
		g.Expect(s.requeueAt).To(Equal(s.now.Add(unknownInterval)), "it would keep its finalizer, and its Node would stay cordoned")
	})
}
