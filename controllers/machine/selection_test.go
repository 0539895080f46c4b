package machine

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestHookWithoutDecision: it is not known whether a policy selects the Machine.
func TestHookWithoutDecision(t *testing.T) {
	for name, tc := range map[string]struct{ invalid, unread, hooked bool }{
		"M103: keeps the hook while a selector of the policy is invalid": {invalid: true, hooked: true},
		"M103: sets no hook meanwhile":                                   {invalid: true},
		"M98: keeps the hook while a policy cannot be decoded":           {unread: true, hooked: true},
		"M98: sets no hook meanwhile":                                    {unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, key := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m"}, Spec: clusterv1.MachineSpec{ClusterName: "c"}}
			if tc.hooked {
				machinedrain.SetHook(machine)
			}
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}}
			if tc.invalid {
				policy.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"a key": "b"}}
			}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, machine, policy).WithStatusSubresource(machine).Build()
			remote := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, key), clock.RealClock{})
			if tc.unread {
				r.Maintenances.Unread = unreadPolicy(t, "a-first")
			}
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(machinedrain.HasHook(machine)).To(Equal(tc.hooked))
		})
	}
}

func TestHookOfAMachineWhoseClusterLeavesTheFilter(t *testing.T) {
	for name, tc := range map[string]struct {
		label     string
		isStale   bool
		keepsHook bool
	}{
		"M104: removes the hook when the Cluster leaves the filter":                        {label: "theirs"},
		"M104: keeps it if the API server has another label of the Cluster than the cache": {label: "theirs", isStale: true, keepsHook: true},
		"M104: keeps it otherwise": {label: "ours", keepsHook: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, key := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}
			filter := machinedrain.WatchFilter("ours")
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
				Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{clusterv1.WatchLabel: tc.label},
			}}
			machine := &clusterv1.Machine{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", Labels: map[string]string{clusterv1.WatchLabel: "ours"}},
				Spec:       clusterv1.MachineSpec{ClusterName: "c"},
			}
			filter.SetHook(machine)
			policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}}
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, machine, policy).WithStatusSubresource(machine).Build()
			remote := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(remote, key), clock.RealClock{})
			r.Filter = filter
			if tc.isStale {
				live := cluster.DeepCopy()
				live.Labels[clusterv1.WatchLabel], live.ResourceVersion = "ours", ""
				r.APIReader = apiServerOf(nil, live, nil)
			}
			_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(machinedrain.HasHook(machine)).To(Equal(tc.keepsHook))
		})
	}
}
