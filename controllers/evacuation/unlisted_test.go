package evacuation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// A user requests the evacuation of a Pod that has just started. The watch of the Pods of its Node does not have the Pod yet: an API server
// may serve its first list from a cache that lags, and the watch of a busy API server lags, too.
func TestPodThatTheWatchHasNotDelivered(t *testing.T) {
	for name, watched := range map[string]bool{
		"E2: the Evacuation of a Pod that exists stays, although the first list of its Node does not contain the Pod": false,
		"E2: the Evacuation of a Pod that exists stays, although the watch of its Node has not delivered the Pod":     true,
	} {
		t.Run(name, func(t *testing.T) {
			g, pod := NewWithT(t), aPod("new", "a")
			e := evacuation.New(pod, nil, 0)
			e.UID, e.OwnerReferences, e.Finalizers = "evacuation", nil, []string{v1alpha1.InstigatorFinalizerPrefix + "user.example.com"}
			e.CreationTimestamp = metav1.Now()
			request := workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: client.ObjectKeyFromObject(e)}
			remote := fakes.Builder(e, pod, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).WithStatusSubresource(e).
				WithIndex(&v1alpha1.NodeMaintenance{}, "node", func(client.Object) []string { return nil }).Build()
			management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: request.Cluster.Namespace, Name: request.Cluster.Name}})
			cache := serving{clustercache.NewFakeClusterCache(remote, request.Cluster), servePods(t)}
			now := clocktesting.NewFakeClock(time.Now())
			r := &Reconciler{
				Clusters: workload.NewClusters(management, cache, fakes.Scheme(), workload.Limits{}, clock.RealClock{}), Machines: &Machines{Reader: management},
				Written: expectations.New[*v1alpha1.Evacuation](t.Context(), workload.Trim), Clock: now,
				goneSince: expiring.NewMap[types.UID, time.Time](t.Context()), nextRead: expiring.NewMap[types.UID, time.Time](t.Context()),
			}
			t.Cleanup(func() { r.Clusters.Disconnect(request.Cluster) })
			listed := func() bool {
				observation := r.Clusters.CurrentObservation(request.Cluster)
				if observation == nil {
					return false
				}
				_, known := observation.PodsOn("a")
				return known
			}
			if watched { // for another Evacuation
				_, err := r.Clusters.Observe(t.Context(), request.Cluster, "another", "a")
				g.Expect(err).NotTo(HaveOccurred())
				g.Eventually(listed).WithTimeout(time.Minute).Should(BeTrue())
			}
			for range 2 { // records the Node, and watches its Pods
				_, err := r.Reconcile(t.Context(), request)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if !watched {
				g.Eventually(listed).WithTimeout(time.Minute).Should(BeTrue())
			}
			for range 3 {
				_, err := r.Reconcile(t.Context(), request)
				g.Expect(err).NotTo(HaveOccurred())
				now.Step(evacuation.AwaitCollectionFor)
			}
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(remote.Get(t.Context(), request.Object, e)).To(Succeed(), "its Pod exists")
			g.Expect(e.DeletionTimestamp).To(BeNil())
		})
	}
}
