package workload

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestReadControllers(t *testing.T) {
	t.Run("M151: a namespace with more Pods than are read is unknown", func(t *testing.T) {
		g, pages, cluster := NewWithT(t), 0, types.NamespacedName{Namespace: "fleet", Name: "c"}
		endless := fakes.Builder().WithInterceptorFuncs(interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
				pages++
				list.SetContinue("more")
				return nil
			},
		}).Build()
		management := fakes.Client(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}})
		clusters := NewClusters(management, clustercache.NewFakeClusterCache(endless, cluster), fakes.Scheme(), Limits{}, clock.RealClock{})
		got := clusters.ReadControllers(t.Context(), cluster, []outcome.Controller{{Kind: "StatefulSet", Namespace: "shop", Name: "db"}})
		g.Expect(pages).To(Equal(maxPages))
		g.Expect(got.Unread[outcome.Controller{Namespace: "shop"}]).To(MatchError(ContainSubstring("more than 20000 Pods")))
	})
}
