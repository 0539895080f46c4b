package machine

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

func TestReconcileWithoutHookReturnsErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		retried    bool
	}{
		"M53: retries to find the NodeMaintenance of a Machine without a condition": {nil, true},
		"M53: does not after the manager has released the Machine": {[]metav1.Condition{{
			Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMachineDrained,
		}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			key := types.NamespacedName{Namespace: "fleet", Name: "c"}
			remote := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).Build(), interceptor.Funcs{
				Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
					if _, is := object.(*corev1.Node); is {
						return errors.New("the API server is overloaded")
					}
					return nil
				},
			})
			management := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			r := &Reconciler{Clusters: workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, key), newScheme(), workload.Limits{}, clock.RealClock{})}
			s := &scope{
				cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, policy: &v1alpha1.MachineDrainPolicy{},
				machine: &clusterv1.Machine{
					ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", DeletionTimestamp: new(metav1.NewTime(time.Unix(1, 0)))},
					Status:     clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node"}, Conditions: tc.conditions},
				},
			}
			NewWithT(t).Expect(r.reconcileWithoutHook(t.Context(), s) != nil).To(Equal(tc.retried))
		})
	}
}
