package nodemaintenance

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestWithdrawalFromUnobservedEvacuations(t *testing.T) {
	for name, wanted := range map[string]bool{
		"E57: a NodeMaintenance that ends withdraws from an Evacuation that the watch has not delivered": false,
		"E57: not from that of a Pod which another NodeMaintenance targets":                              true,
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme, cluster := NewWithT(t), fakes.Scheme(), types.NamespacedName{Namespace: "fleet", Name: "c"}
			e := evacuation.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod"}}, nil, 0)
			e.UID, e.Annotations = "evacuation", map[string]string{v1alpha1.EvacuationNodeAnnotation: "one"}
			stored := fakes.Client(e)
			lagging := interceptor.NewClient(stored, interceptor.Funcs{
				List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
			})
			management := fakes.Client()
			r := &Reconciler{Clusters: workload.NewClusters(management, clustercache.NewFakeClusterCache(stored, cluster), scheme, workload.Limits{}, clock.RealClock{})}
			s := &scope{request: workload.Request{Cluster: cluster, Object: types.NamespacedName{Name: "m"}}, client: lagging, now: time.Now()}
			r.created.recordCreated(s.request, e, s.now)
			others := sets.New[types.UID]()
			if wanted {
				others.Insert("pod")
			}
			g.Expect(r.withdrawAll(t.Context(), s, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, others)).To(Succeed())
			g.Expect(stored.Get(t.Context(), client.ObjectKeyFromObject(e), e)).To(Succeed())
			g.Expect(evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)).To(Equal(wanted))
			g.Expect(r.created.unobserved(s.request, "one")).To(BeEmpty())
		})
	}
}
