package nodemaintenance

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

// starting is a controller that starts its sources at once.
type starting struct {
	controller.TypedController[workload.Request]
	t     *testing.T
	queue workload.Queue
}

func (s starting) Watch(from source.TypedSource[workload.Request]) error {
	return from.Start(s.t.Context(), s.queue)
}

// While the watch is interrupted, a user removes the finalizer of a NodeMaintenance, and creates another one of the same name for another
// Node. The informer delivers that as an update of one object.
func TestMaintenanceReplacedWhileTheWatchWasInterrupted(t *testing.T) {
	t.Run("R64: the Node of a NodeMaintenance that was replaced by one of the same name is cleaned up", func(t *testing.T) {
		g, cluster := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
		of := func(uid types.UID, node string) *v1alpha1.NodeMaintenance {
			return &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: uid}, Spec: v1alpha1.NodeMaintenanceSpec{
				Stage: v1alpha1.StageCordon, NodeSelector: v1alpha1.SelectNodes(node),
			}}
		}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[workload.Request]())
		r := &Sweeper{
			Clusters:     workload.NewClusters(fakes.Client(), nil, fakes.Scheme(), workload.Limits{}, clock.RealClock{}),
			Maintenances: &machinemaintenance.Requester{}, controller: starting{t: t, queue: queue},
		}
		informers := &informertest.FakeInformers{Scheme: fakes.Scheme()}
		for _, watcher := range r.Watches(cluster) {
			if watcher.Name() == "sweeper-NodeMaintenances" {
				g.Expect(watcher.Watch(informers)).To(Succeed())
			}
		}
		informer, err := informers.FakeInformerFor(t.Context(), &v1alpha1.NodeMaintenance{})
		g.Expect(err).NotTo(HaveOccurred())
		cordoned := workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "former"}}
		next := func() any {
			if queue.Len() == 0 {
				return nil
			}
			request, _ := queue.Get()
			queue.Done(request)
			return request
		}
		g.Eventually(func() any { // its handler is added in the background
			informer.Delete(of("1", "former"))
			return next()
		}).Should(Equal(cordoned))
		for next() != nil {
			continue
		}
		informer.Update(of("1", "former"), of("2", "present"))
		g.Eventually(next).Should(Equal(cordoned), "it stays cordoned until the next connection")
	})
}
