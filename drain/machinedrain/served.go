package machinedrain

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// OwnerMachine names the Machine that a NodeMaintenance in the workload cluster of a Cluster serves. Not ours: it serves none, or one of
// another management cluster or Cluster: two management clusters may share a workload cluster.
func OwnerMachine(m *v1alpha1.NodeMaintenance, managementCluster string, cluster types.NamespacedName) (machine types.NamespacedName, ours bool) {
	machine, ours = OwnerMachineOfAnyManager(m, cluster)
	return machine, ours && m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] == managementCluster
}

// OwnerMachineOfAnyManager is Served for whichever management cluster: the Cluster may have been moved here from another one.
func OwnerMachineOfAnyManager(m *v1alpha1.NodeMaintenance, cluster types.NamespacedName) (machine types.NamespacedName, ok bool) {
	namespace, name, _ := strings.Cut(m.Annotations[v1alpha1.OwnerMachineAnnotation], "/")
	ok = m.Annotations[v1alpha1.OwnerClusterAnnotation] == cluster.String() && namespace == cluster.Namespace && name != ""
	return types.NamespacedName{Namespace: namespace, Name: name}, ok
}

// KeepsNodeCordoned says whether the Node of a Machine stays as it is, also when somebody completes the NodeMaintenance that serves it: it
// goes, and nothing may be scheduled to it any more.
func KeepsNodeCordoned(machine *clusterv1.Machine) bool {
	return machine != nil && !machine.DeletionTimestamp.IsZero()
}
