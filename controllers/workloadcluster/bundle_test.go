package workloadcluster

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestTellMissing(t *testing.T) {
	t.Run("R9: records an event on the Cluster about admission policies that the workload cluster does not support", func(t *testing.T) {
		g, recorder := NewWithT(t), record.NewFakeRecorder(1)
		r := &Reconciler{recorder: recorder}
		r.reportMissing(t.Context(), &clusterv1.Cluster{}, nil)
		g.Expect(recorder.Events).To(BeEmpty())
		r.reportMissing(t.Context(), &clusterv1.Cluster{}, []string{"ValidatingAdmissionPolicy one", "ValidatingAdmissionPolicyBinding one"})
		g.Expect(recorder.Events).To(Receive(Equal("Warning AdmissionPoliciesMissing The workload cluster does not support these, so every user who may write " +
			"NodeMaintenances or Evacuations there can drain its Nodes: ValidatingAdmissionPolicy one, ValidatingAdmissionPolicyBinding one")))
	})
}

func TestRefusedBundle(t *testing.T) {
	t.Run("M57: reports that the API server refuses the bundle until it is installed", func(t *testing.T) {
		g := NewWithT(t)
		scheme := runtime.NewScheme()
		_, _, _ = clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)
		key := types.NamespacedName{Namespace: "fleet", Name: "c"}
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "all"}}
		management := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, policy).Build()
		refuses := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, "any", errors.New("no role permits it"))
			},
		}).Build()
		clusters := workload.NewClusters(management, clustercache.NewFakeClusterCache(refuses, key), scheme, workload.Limits{}, clock.RealClock{})
		r := &Reconciler{Client: management, Clock: clock.RealClock{}, Clusters: clusters}
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).To(HaveOccurred())
		g.Expect(clusters.Unserved(key)).To(And(HavePrefix("The bundle cannot be installed in the workload cluster: "), ContainSubstring("no role permits it")))
		clusters.SetUnserved(key, "")
		r.checks.Store(key, check{at: r.Clock.Now().Add(-time.Hour)})
		_, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		g.Expect(err).To(HaveOccurred())
		g.Expect(clusters.Unserved(key)).To(BeEmpty(), "drains continue while a later check fails")
	})
}
