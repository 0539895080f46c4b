package machinedrain

import (
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// UnreadPolicyMessage says that a drain waits for a policy that cannot be read.
func UnreadPolicyMessage(namespace, policy, problem string) string {
	return fmt.Sprintf("Waiting for MachineDrainPolicy %s/%s, which may select the Machine, to be fixed: %s", namespace, policy, problem)
}

// StageOfUnread is WantedStage for a Machine whose policy cannot be read, so that it is not known whether a NodeMaintenance is wanted. As
// long as it may be, nothing is restored: neither by one that a user deletes, nor for one that no longer exists.
func StageOfUnread(m *clusterv1.Machine, cluster *clusterv1.Cluster) v1alpha1.NodeMaintenanceStage {
	if !m.DeletionTimestamp.IsZero() || cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return WantedStage(m, cluster, nil, "")
	}
	return v1alpha1.StageCordon
}
