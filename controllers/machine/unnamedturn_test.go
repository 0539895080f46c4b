package machine

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// TestTurnsOfMachinesWithoutNodeRefWhoseStepFails: after clusterctl move, the webhook of the infrastructure provider does not answer for
// two minutes. No Machine of the Cluster has a NodeMaintenance yet.
func TestTurnsOfMachinesWithoutNodeRefWhoseStepFails(t *testing.T) {
	for name, hasNodeRef := range map[string]bool{
		"M26, M39: Machines whose step before the turn fails do not have turns together":                         true,
		"M26, M39, M128: Machines without a nodeRef whose step before the turn fails do not have turns together": false,
	} {
		t.Run(name, func(t *testing.T) {
			g, start, key := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), types.NamespacedName{Namespace: "fleet", Name: "c"}
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "workers"}}
			policy.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
			mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
			controlPlane := deletedMachine()
			controlPlane.Name, controlPlane.UID, controlPlane.DeletionTimestamp, controlPlane.Finalizers = "cp", "cp", nil, nil
			controlPlane.Labels = map[string]string{clusterv1.ClusterNameLabel: "c", clusterv1.MachineControlPlaneLabel: ""}
			objects, remote := []client.Object{provisionedCluster(), policy, controlPlane}, fake.NewClientBuilder().WithScheme(newScheme()).WithRESTMapper(mapper)
			var machines []*clusterv1.Machine
			for i := range 4 {
				name := fmt.Sprintf("worker-%d", i)
				m, node := deletedMachine(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
				node.Spec.ProviderID = "cloud://" + name
				m.Name, m.UID, m.Labels = name, types.UID(name), map[string]string{clusterv1.ClusterNameLabel: "c"}
				m.Spec.ProviderID, m.Status.NodeRef.Name = node.Spec.ProviderID, ""
				if hasNodeRef {
					m.Status.NodeRef.Name = name
				}
				m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](3600)
				m.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(time.Duration(i-10) * time.Second)))
				machines, objects = append(machines, m), append(objects, m)
				remote.WithObjects(node)
			}
			fails := true
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithStatusSubresource(controlPlane).Build()
			workloadCluster, now := remote.Build(), clocktesting.NewFakePassiveClock(start)
			answers := clustercache.HealthCheckingState{LastProbeTime: start, LastProbeSuccessTime: start}
			r := newReconciler(t, management, disconnected{clustercache.NewFakeClusterCache(workloadCluster, key), answers}, now)
			r.APIReader = interceptor.NewClient(management, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if fails {
						return errors.New("the conversion webhook of the infrastructure provider does not answer")
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			t.Cleanup(func() {
				for _, m := range machines {
					r.forget(client.ObjectKeyFromObject(m))
				}
			})
			reconcileAll := func(from time.Time) {
				for i, m := range machines { // not in the same moment
					now.SetTime(from.Add(time.Duration(i) * 3 * time.Second))
					if !fails {
						r.references.Set(types.NamespacedName{Namespace: "fleet"}, m.UID, referenced{}, time.Hour)
					}
					_, _ = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
				}
			}
			for after := time.Duration(0); after < 2*time.Minute; after += pollInterval {
				reconcileAll(start.Add(after))
			}
			turns := 0
			for _, m := range machines {
				g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
				if _, has := m.Annotations[v1alpha1.DrainStartedAnnotation]; has {
					turns++
				}
			}
			fails = false
			for range 3 {
				reconcileAll(now.Now().Add(pollInterval))
			}
			all, drains := &v1alpha1.NodeMaintenanceList{}, 0
			g.Expect(workloadCluster.List(t.Context(), all)).To(Succeed())
			for i := range all.Items {
				if all.Items[i].Spec.Stage == v1alpha1.StageDrain {
					drains++
				}
			}
			g.Expect(all.Items).NotTo(BeEmpty())
			g.Expect([]int{turns, drains}).To(HaveEach(BeNumerically("<=", 1)), "turns, and drains after the failure; maxParallelDrains allows 1")
		})
	}
}
