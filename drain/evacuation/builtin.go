package evacuation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// BuiltIn says which of our own evacuators serve a Pod of this type. It is the one place that knows: whoever resolves the
// evacuators of a Pod asks it.
//
// Static Pods have none that follows from their type: see package staticpods.
func BuiltIn(podType v1alpha1.PodType) []v1alpha1.Evacuator {
	if podType != v1alpha1.PodTypeDaemonSet {
		return nil
	}
	role := v1alpha1.EvacuatorRoleController
	return []v1alpha1.Evacuator{{
		EvacuatorClass: v1alpha1.EvacuatorClassDaemonSet, Priority: v1alpha1.EvacuatorControllerPriority, Role: &role,
	}}
}

// SubjectOf describes the Pod of an Evacuation for Resolve. Who asked for it may have limited the evacuators: a tenant must not
// be able to bring back, by an annotation on the Pod, what a policy has left out.
func SubjectOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) Subject {
	return Subject{
		Annotations: pod.Annotations,
		BuiltIn:     BuiltIn(podType),
		Policy:      v1alpha1.EvacuatorsPolicy(e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation]),
	}
}
