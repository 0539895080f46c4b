package nodemaintenance

import (
	"context"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestHandlersReadNoNodesThatAreNotObserved(t *testing.T) {
	key := types.NamespacedName{Namespace: "fleet", Name: "c"}
	scheme := runtime.NewScheme()
	_, _, _ = corev1.AddToScheme(scheme), clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	labels := map[string]string{"pool": "a"}
	m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Spec.NodeSelector = v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{MatchExpressions: []v1alpha1.NodeSelectorRequirement{
		{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
	}}}}
	for name, handle := range map[string]func(context.Context, *workload.Clusters){
		"R80: an event of a NodeMaintenance": func(ctx context.Context, c *workload.Clusters) {
			(&Reconciler{Clusters: c}).itselfAndNeighbours(key)(ctx, m)
		},
		"R80: the deletion of a NodeMaintenance that selects Nodes by label": func(ctx context.Context, c *workload.Clusters) {
			(&Sweeper{Clusters: c, Maintenances: &machinemaintenance.Requester{}}).nodesOf(ctx, key, m)
		},
		"R80: an event of an Evacuation": func(ctx context.Context, c *workload.Clusters) {
			(&Reconciler{Clusters: c}).maintenancesOfNamed(ctx, key, "n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var reads atomic.Int32
			remote := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).
				WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}}).
				WithIndex(&v1alpha1.NodeMaintenance{}, "byNode", func(client.Object) []string { return nil }).
				WithInterceptorFuncs(interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
						if _, is := object.(*corev1.Node); is {
							reads.Add(1)
						}
						return c.Get(ctx, key, object, options...)
					},
					List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
						if _, is := list.(*corev1.NodeList); is {
							reads.Add(1)
						}
						return c.List(ctx, list, options...)
					},
				}).Build()
			management := fake.NewClientBuilder().WithScheme(scheme).
				WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}).Build()
			clusters := workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, key), scheme, workload.Limits{}, clock.RealClock{})
			c, err := clusters.Client(t.Context(), key)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(workload.ObservesNodes(c)).To(BeFalse())
			handle(t.Context(), clusters)
			g.Expect(reads.Load()).To(BeZero(), "requests to the workload cluster in a handler that all controllers share")
		})
	}
}
