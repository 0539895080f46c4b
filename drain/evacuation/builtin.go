package evacuation

import (
	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// BuiltIn says which of our own evacuators serve a Pod of this type. It is the one place that knows: whoever resolves the
// evacuators of a Pod asks it.
//
// Static Pods have none: they stop with the kubelet, and no agent of ours runs beside it.
func BuiltIn(podType v1alpha1.PodType) []v1alpha1.Evacuator {
	if podType != v1alpha1.PodTypeDaemonSet {
		return nil
	}
	role := v1alpha1.EvacuatorRoleController
	return []v1alpha1.Evacuator{{
		EvacuatorClass: v1alpha1.EvacuatorClassDaemonSet, Priority: v1alpha1.EvacuatorControllerPriority, Role: &role,
	}}
}
