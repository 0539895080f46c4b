package progress

import "github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"

// Evacuated returns how many Pods have been evacuated since the drain began, from the previous summary and the present counts.
func Evacuated(before, now v1alpha1.NodeMaintenanceSummary) int32 {
	decrease := before.PodsPending + before.PodsEvacuating - now.PodsPending - now.PodsEvacuating
	return before.PodsEvacuated + max(decrease, 0)
}
