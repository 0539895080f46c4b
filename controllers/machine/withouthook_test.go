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
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestReconcileWithoutHookReturnsErrors(t *testing.T) {
	for name, conditions := range map[string][]metav1.Condition{
		"M53: retries to find the NodeMaintenance of a Machine without a condition": nil,
		"M162: retries to find that of a Machine that the manager has released: its drain is suspended until then": {{
			Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMachineDrained,
		}},
		"M54: retries to find that of a Machine that was released without a drain": {{
			Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSkipped,
		}},
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
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster).Build()
			r := &Reconciler{
				Clusters: workload.NewClusters(management, clustercache.NewFakeClusterCache(remote, key), newScheme(), workload.Limits{}, clock.RealClock{}),
			}
			s := &scope{
				cluster: cluster, policy: &v1alpha1.MachineDrainPolicy{},
				machine: &clusterv1.Machine{
					ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", DeletionTimestamp: new(metav1.NewTime(time.Unix(1, 0)))},
					Status:     clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node"}, Conditions: conditions},
				},
			}
			NewWithT(t).Expect(r.reconcileWithoutHook(t.Context(), s)).To(MatchError(ContainSubstring("overloaded")))
		})
	}
}

func TestDrainOfSkippedMachine(t *testing.T) {
	cluster, node := types.NamespacedName{Namespace: "fleet", Name: "c"}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "1"}}
	for name, tc := range map[string]struct {
		change    func(*clusterv1.Machine, *v1alpha1.NodeMaintenance)
		completed bool
	}{
		"completes the NodeMaintenance of a Machine that was released without a drain": {completed: true},
		"completes it also if the Machine has no nodeRef": {
			completed: true, change: func(m *clusterv1.Machine, _ *v1alpha1.NodeMaintenance) {
				m.Status.NodeRef = clusterv1.MachineNodeReference{}
			},
		},
		"does not without a nodeRef if it drained an earlier Node of that name": {change: func(machine *clusterv1.Machine, m *v1alpha1.NodeMaintenance) {
			machine.Status.NodeRef, m.Annotations[v1alpha1.NodeUIDAnnotation] = clusterv1.MachineNodeReference{}, "0"
		}},
		"does not if the Machine was drained": {change: func(m *clusterv1.Machine, _ *v1alpha1.NodeMaintenance) {
			m.Status.Conditions[0].Reason = v1alpha1.ReasonMachineDrained
		}},
		"does not if its drain has timed out": {change: func(m *clusterv1.Machine, _ *v1alpha1.NodeMaintenance) {
			m.Status.Conditions[0].Reason, m.Status.Conditions[0].Status = v1alpha1.ReasonTimedOut, metav1.ConditionFalse
		}},
		"does not while the Machine is paused": {change: func(m *clusterv1.Machine, _ *v1alpha1.NodeMaintenance) {
			m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
		}},
		"does not if the NodeMaintenance is one of another management cluster": {change: func(_ *clusterv1.Machine, m *v1alpha1.NodeMaintenance) {
			m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] = "there"
		}},
		"does not if it serves another Machine": {change: func(_ *clusterv1.Machine, m *v1alpha1.NodeMaintenance) {
			m.Annotations[v1alpha1.OwnerMachineAnnotation] = "fleet/other"
		}},
		"does not if it serves a Machine of another Cluster": {change: func(_ *clusterv1.Machine, m *v1alpha1.NodeMaintenance) {
			m.Annotations[v1alpha1.OwnerClusterAnnotation] = "fleet/other"
		}},
		"does not if it drained an earlier Node of that name": {change: func(_ *clusterv1.Machine, m *v1alpha1.NodeMaintenance) {
			m.Annotations[v1alpha1.NodeUIDAnnotation] = "0"
		}},
		"does not if it only cordons the Node": {change: func(_ *clusterv1.Machine, m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon }},
	} {
		t.Run("M54: "+name, func(t *testing.T) {
			g := NewWithT(t)
			machine := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fleet", Name: "m", DeletionTimestamp: new(metav1.NewTime(time.Unix(1, 0))), Finalizers: []string{clusterv1.MachineFinalizer},
				},
				Spec: clusterv1.MachineSpec{ClusterName: "c"},
				Status: clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node"}, Conditions: []metav1.Condition{{
					Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSkipped, LastTransitionTime: metav1.Unix(2, 0),
				}}},
			}
			m := machinedrain.Maintenance(machinedrain.Request{ManagementCluster: "here", Cluster: cluster, Machine: machine, Node: node})
			if tc.change != nil {
				tc.change(machine, m)
			}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithStatusSubresource(machine).
				WithObjects(machine, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"}}).Build()
			remote := workloadCluster().WithObjects(node, m).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, cluster), clock.RealClock{})
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			before := m.Spec.Stage
			g.Expect(remote.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
			if tc.completed {
				g.Expect(m.Spec.Stage).To(Equal(v1alpha1.StageComplete))
			} else {
				g.Expect(m.Spec.Stage).To(Equal(before))
			}
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(conditions.GetReason(machine, v1alpha1.MachineNodeMaintenance)).NotTo(Equal(v1alpha1.ReasonHookRemoved))
		})
	}
}
