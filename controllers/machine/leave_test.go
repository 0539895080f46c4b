package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// TestMachineThatLeavesTheFilter: the label of a running Machine is changed while its Node is drained in place.
func TestMachineThatLeavesTheFilter(t *testing.T) {
	const ours, theirs = "ours", "theirs"
	for name, tc := range map[string]struct {
		cluster, stored string // the labels of its Cluster: in the cache, and in the API server if that differs
		meanwhile       func(*clusterv1.Machine)
		unconnected     bool // at first
		paused          bool
		unlabelled      bool // the label of the Machine is removed
		drains, hooked  bool // at last
	}{
		"M175: its drain ends, and the hook is removed": {cluster: ours},
		"M175: also if the other manager has removed the hook": {cluster: ours, meanwhile: func(m *clusterv1.Machine) {
			delete(m.Annotations, v1alpha1.PreDrainHookAnnotation)
		}},
		"M175: also if the workload cluster is connected later":                                         {cluster: ours, unconnected: true},
		"M175: nothing of it is left on a Machine that no other manager has":                            {cluster: ours, unconnected: true, unlabelled: true},
		"M175: it stays while the Cluster is paused, so that both labels can be changed":                {cluster: ours, paused: true, drains: true, hooked: true},
		"M175: its drain is left to the other manager if its Cluster has left the filter, too":          {cluster: theirs, drains: true},
		"M175: also if the watch has not delivered that, and the hook stays until it has":               {cluster: ours, stored: theirs, drains: true, hooked: true},
		"M175: a drain before an update in place that has begun does not end before the update is over": {cluster: ours, meanwhile: beginUpdate, drains: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := beginDrain(t, true)
			cluster := &clusterv1.Cluster{}
			d.Expect(d.management.Get(t.Context(), clusterKey, cluster)).To(Succeed())
			cluster.Labels = map[string]string{clusterv1.WatchLabel: tc.cluster}
			cluster.Spec.Paused = &tc.paused
			d.Expect(d.management.Update(t.Context(), cluster)).To(Succeed())
			d.change(func(m *clusterv1.Machine) {
				m.Labels[clusterv1.WatchLabel] = theirs
				if tc.unlabelled {
					delete(m.Labels, clusterv1.WatchLabel)
				}
				m.Annotations[v1alpha1.PreDrainHookAnnotation] = v1alpha1.HookOwner + "/" + ours
				if tc.meanwhile != nil {
					tc.meanwhile(m)
				}
			})
			d.restart()
			d.r.Filter, d.r.Clusters.Filter = ours, ours
			if tc.stored != "" {
				live := cluster.DeepCopy()
				live.Labels, live.ResourceVersion = map[string]string{clusterv1.WatchLabel: tc.stored}, ""
				d.r.APIReader = apiServerOf(nil, live, nil)
			}
			if tc.unconnected {
				r := notConnected(t, d.management, d.r.Clock)
				r.Filter = ours
				for range 2 { // also without the hook
					_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d.machine)})
					d.Expect(err).NotTo(HaveOccurred())
					d.Expect(machinedrain.HasHook(d.stored())).To(BeFalse())
				}
			}
			for now := time.Minute; now < time.Minute+8*time.Second; now += time.Second {
				d.reconcile(now)
				all := &v1alpha1.NodeMaintenanceList{}
				d.Expect(d.remote.List(t.Context(), all)).To(Succeed())
				for i := range all.Items {
					if !all.Items[i].DeletionTimestamp.IsZero() { // as the controller of NodeMaintenances does
						all.Items[i].Finalizers = nil
						d.Expect(d.remote.Update(t.Context(), &all.Items[i])).To(Succeed())
					}
				}
			}
			drains, _ := drainingIn(t, d.remote)
			continues := len(drains) > 0
			d.Expect(continues).To(Equal(tc.drains))
			stored := d.stored()
			d.Expect(machinedrain.HasHook(stored)).To(Equal(tc.hooked))
			if tc.meanwhile == nil { // another manager continues where the drain ended
				isLeft := tc.drains || tc.unconnected && !tc.unlabelled // to the other manager, which may have written it
				d.Expect(machinedrain.MayHaveMaintenance(stored)).To(Equal(isLeft))
				d.Expect(conditions.Has(stored, v1alpha1.MachineNodeMaintenance)).To(Equal(isLeft))
			}
			d.r.forget(client.ObjectKeyFromObject(d.machine))
		})
	}
}
