package machinedrain_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestServed(t *testing.T) {
	for name, tc := range map[string]struct {
		managementCluster, cluster, machine string
		want                                bool
	}{
		"M18: it is ours":                                   {"here", "ns/c", "ns/m", true},
		"M18: it is of another management cluster":          {"there", "ns/c", "ns/m", false},
		"M18: it is of another Cluster":                     {"here", "ns/other", "ns/m", false},
		"M18: a Machine is in the namespace of its Cluster": {"here", "ns/c", "other/m", false},
		"M18: it names no Machine":                          {"here", "ns/c", "", false},
		"M18: nor does this":                                {"here", "ns/c", "ns/", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{}
			m.Annotations = map[string]string{
				v1alpha1.OwnerManagementClusterAnnotation: tc.managementCluster, v1alpha1.OwnerClusterAnnotation: tc.cluster, v1alpha1.OwnerMachineAnnotation: tc.machine,
			}
			machine, ours := machinedrain.OwnerMachine(m, "here", types.NamespacedName{Namespace: "ns", Name: "c"})
			if ours != tc.want || ours && machine.String() != tc.machine {
				t.Errorf("got %s, %t", machine, ours)
			}
		})
	}
	t.Run("M12: whichever management cluster it is of, it serves a Machine of the Cluster", func(t *testing.T) {
		m := &v1alpha1.NodeMaintenance{}
		m.Annotations = map[string]string{
			v1alpha1.OwnerManagementClusterAnnotation: "there", v1alpha1.OwnerClusterAnnotation: "ns/c", v1alpha1.OwnerMachineAnnotation: "ns/m",
		}
		if machine, ok := machinedrain.OwnerMachineOfAnyManager(m, types.NamespacedName{Namespace: "ns", Name: "c"}); !ok || machine.String() != "ns/m" {
			t.Errorf("got %s, %t", machine, ok)
		}
	})
	t.Run("M18: one that people have made serves none", func(t *testing.T) {
		if _, ours := machinedrain.OwnerMachine(&v1alpha1.NodeMaintenance{}, "", types.NamespacedName{}); ours {
			t.Error("it serves one")
		}
	})
}

func TestKeepsNode(t *testing.T) {
	for name, tc := range map[string]struct {
		machine *clusterv1.Machine
		want    bool
	}{
		"M17: a Machine that is being deleted keeps its Node as it is": {machine(isDeleted), true},
		"M30: one that runs gets it back":                              {machine(), false},
		"M18: so does nobody":                                          {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := machinedrain.KeepsNodeCordoned(tc.machine); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
