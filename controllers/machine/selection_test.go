package machine

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

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
			machine, policy := runningMachine(), policyForAll()
			if tc.hooked {
				machinedrain.SetHook(machine)
			}
			if tc.invalid {
				policy.Spec.MachineSelector = &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"a key": "b"}}
			}
			management := managementCluster(machine).WithObjects(policy).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(workloadCluster().Build(), clusterKey), clock.RealClock{})
			if tc.unread {
				r.Maintenances.Unread = unreadPolicy(t, "a-first")
			}
			reconcileOnce(t, r, machine)
			NewWithT(t).Expect(machinedrain.HasHook(machine)).To(Equal(tc.hooked))
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
			filter, cluster, machine := machinedrain.WatchFilter("ours"), provisionedCluster(), runningMachine()
			cluster.Labels, machine.Labels = map[string]string{clusterv1.WatchLabel: tc.label}, map[string]string{clusterv1.WatchLabel: "ours"}
			filter.SetHook(machine)
			management := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(cluster, machine, policyForAll()).WithStatusSubresource(machine).Build()
			r := newReconciler(t, management, clustercache.NewFakeClusterCache(workloadCluster().Build(), clusterKey), clock.RealClock{})
			r.Filter = filter
			if tc.isStale {
				live := cluster.DeepCopy()
				live.Labels[clusterv1.WatchLabel], live.ResourceVersion = "ours", ""
				r.APIReader = apiServerOf(nil, live, nil)
			}
			reconcileOnce(t, r, machine)
			NewWithT(t).Expect(machinedrain.HasHook(machine)).To(Equal(tc.keepsHook))
		})
	}
}
