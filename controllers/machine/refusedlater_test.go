package machine

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestTurnBehindMachineThatCannotBePatchedAfterItWaited: as TestTurnBehindMachineThatCannotBePatched, but the Machine has recorded that it
// waits for a turn before the API server refuses its changes. It is reconciled less than recordAfter before the younger one, each time.
func TestTurnBehindMachineThatCannotBePatchedAfterItWaited(t *testing.T) {
	t.Run("M37, M39: a younger Machine gets a turn whenever it is reconciled", func(t *testing.T) {
		g, start, key := NewWithT(t), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), types.NamespacedName{Namespace: "fleet", Name: "c"}
		policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "workers"}}
		policy.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(v1alpha1.GroupVersion.WithKind("NodeMaintenance"), meta.RESTScopeRoot)
		mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
		objects, remote := []client.Object{provisionedCluster(), policy}, fake.NewClientBuilder().WithScheme(newScheme()).WithRESTMapper(mapper)
		controlPlane := deletedMachine()
		controlPlane.Name, controlPlane.UID, controlPlane.DeletionTimestamp, controlPlane.Finalizers = "cp", "cp", nil, nil
		controlPlane.Labels = map[string]string{clusterv1.ClusterNameLabel: "c", clusterv1.MachineControlPlaneLabel: ""}
		var machines []*clusterv1.Machine
		for i, name := range []string{"drains", "refused", "younger"} {
			m, node := deletedMachine(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
			m.Name, m.UID, m.Status.NodeRef.Name, m.Labels = name, types.UID(name), name, map[string]string{clusterv1.ClusterNameLabel: "c"}
			m.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(time.Duration(i-10) * time.Hour)))
			if remote.WithObjects(node); i == 0 {
				drain := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: key, Machine: m, Node: node})
				drain.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
				remote.WithObjects(drain)
			} else {
				m.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To[int32](60)
			}
			machines, objects = append(machines, m), append(objects, m)
		}
		refuses := false
		refusal := apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("Machine").GroupKind(), "refused", nil)
		management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(append(objects, controlPlane)...).WithStatusSubresource(machines[0]).
			WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if object.GetName() == "refused" && refuses {
						return refusal
					}
					return c.Patch(ctx, object, patch, options...)
				},
			}).Build()
		workloadCluster, now := remote.Build(), clocktesting.NewFakePassiveClock(start)
		answers := clustercache.HealthCheckingState{LastProbeTime: start, LastProbeSuccessTime: start}
		reachable := disconnected{clustercache.NewFakeClusterCache(workloadCluster, key), answers}
		r := newReconciler(t, management, reachable, now)
		t.Cleanup(func() {
			for _, m := range machines {
				r.forget(client.ObjectKeyFromObject(m))
			}
		})
		hasTurn := func() bool {
			all := &v1alpha1.NodeMaintenanceList{}
			g.Expect(workloadCluster.List(t.Context(), all)).To(Succeed())
			for i := range all.Items {
				if all.Items[i].Annotations[v1alpha1.OwnerMachineAnnotation] == "fleet/younger" && all.Items[i].Spec.Stage == v1alpha1.StageDrain {
					return true
				}
			}
			return false
		}
		for after := time.Duration(0); after <= time.Hour && !hasTurn(); after += 15 * time.Second {
			refuses = after >= time.Minute/2 // it has recorded before that it waits for a turn
			for i, m := range machines[1:] {
				now.SetTime(start.Add(after + time.Duration(i)*3*time.Second))
				r.references.Set(types.NamespacedName{Namespace: "fleet"}, m.UID, referenced{}, time.Hour)
				_, _ = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
			}
		}
		g.Expect(hasTurn()).To(BeTrue(), "after an hour, with a drain timeout of a minute")
	})
}
