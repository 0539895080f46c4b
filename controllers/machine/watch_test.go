package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestMachinesAffectedBy(t *testing.T) {
	machine := func(name, cluster string, change func(*clusterv1.Machine)) client.Object {
		m := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
			Status:     clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "node-of-" + name}},
		}
		change(m)
		return m
	}
	deleted := func(m *clusterv1.Machine) {
		m.DeletionTimestamp, m.Finalizers = new(metav1.NewTime(time.Unix(1, 0))), []string{clusterv1.MachineFinalizer}
		m.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: ""}
	}
	r := &Reconciler{Client: fakes.Builder(
		machine("running", "c", func(*clusterv1.Machine) {}),
		machine("deleted", "c", deleted),
		machine("other", "c", deleted),
		machine("cordoned", "c", func(m *clusterv1.Machine) {
			m.Annotations = map[string]string{v1alpha1.MachineStageAnnotation: string(v1alpha1.StageCordon)}
		}),
		machine("elsewhere", "d", deleted),
	).Build()}
	cluster := types.NamespacedName{Namespace: "fleet", Name: "c"}
	for _, tc := range []struct {
		name   string
		change workload.Change
		want   []string
	}{
		{
			"M19: the draining Machine of a Node whose volumes have changed",
			workload.Change{Cluster: cluster, Type: workload.VolumesChanged, Node: "node-of-deleted"}, []string{"deleted"},
		},
		{"M19: no running Machine whose volumes have changed", workload.Change{Cluster: cluster, Type: workload.VolumesChanged, Node: "node-of-running"}, nil},
		{
			"M55: all Machines that may have a NodeMaintenance, after the watches of a new connection were added",
			workload.Change{Cluster: cluster, Type: workload.WatchesAdded}, []string{"deleted", "other", "cordoned"},
		},
		{
			"M95: the Machine of a Node whose drain is confirmed",
			workload.Change{Cluster: cluster, Type: workload.DrainConfirmed, Node: "node-of-deleted"}, []string{"deleted"},
		},
		{"M19: none for the change of a Pod", workload.Change{Cluster: cluster, Type: workload.PodChanged, Node: "node-of-deleted"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want []reconcile.Request
			for _, name := range tc.want {
				want = append(want, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "fleet", Name: name}})
			}
			NewWithT(t).Expect(r.machinesAffectedBy(t.Context(), tc.change)).To(ConsistOf(want))
		})
	}
}
