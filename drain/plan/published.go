package plan

import (
	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Published returns the drain targets that a status has for one of its Nodes, whether they stand there or in the table that
// Nodes share.
func Published(status *v1alpha1.NodeMaintenanceStatus, node v1alpha1.NodeMaintenanceNodeStatus) []v1alpha1.DrainTarget {
	if i := node.DrainTargetsIndex; i != nil && *i >= 0 && int(*i) < len(status.DrainTargetSets) {
		return status.DrainTargetSets[*i].DrainTargets
	}
	return node.DrainTargets
}
