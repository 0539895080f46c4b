package nodemaintenance

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestConflictsAreRetried(t *testing.T) {
	t.Run("R57: a reconciliation that conflicts repeatedly is retried later each time", func(t *testing.T) {
		g := NewWithT(t)
		scheme := runtime.NewScheme()
		g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
		request := workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: types.NamespacedName{Name: "m"}}
		management := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}).Build()
		conflicts := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return apierrors.NewConflict(schema.GroupResource{Resource: "nodemaintenances"}, "m", errors.New("it has changed"))
			},
		}).Build()
		now := clocktesting.NewFakePassiveClock(time.Unix(1_000_000, 0))
		r := &Reconciler{Clock: now, Clusters: workload.NewClusters(management, clustercache.NewFakeClusterCache(conflicts, request.Cluster), scheme, workload.Limits{}, now)}
		first, err := r.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		now.SetTime(now.Now().Add(400 * time.Millisecond))
		second, err := r.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(first.RequeueAfter).To(BeNumerically(">", 0))
		g.Expect(second.RequeueAfter).To(BeNumerically(">", first.RequeueAfter))
	})
}
