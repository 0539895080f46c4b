package evacuation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// BuiltIn says which of our own evacuators serve a Pod: the one of the workload that controls it. It is the one place that
// knows: whoever resolves the evacuators of a Pod asks it. policy is that of the maintenance which asks for its evacuation.
//
// Static Pods have none that follows from their type: see package staticpods.
func BuiltIn(pod *corev1.Pod, podType v1alpha1.PodType, policy v1alpha1.EvacuationPolicy) []v1alpha1.Evacuator {
	var class string
	switch {
	case podType == v1alpha1.PodTypeDaemonSet:
		class = v1alpha1.EvacuatorClassDaemonSet
	case podType != v1alpha1.PodTypeDefault:
		return nil
	case surge.Allows(policy.Surge, pod) && surge.DeploymentOf(pod) != "":
		class = v1alpha1.EvacuatorClassDeployment
	case policy.StatefulSetPods != v1alpha1.StatefulSetPodsUnordered && statefulset.SetOf(pod) != "":
		class = v1alpha1.EvacuatorClassStatefulSet
	default:
		return nil
	}
	role := v1alpha1.EvacuatorRoleController
	return []v1alpha1.Evacuator{{EvacuatorClass: class, Priority: v1alpha1.EvacuatorControllerPriority, Role: &role}}
}

// serving are all of our own evacuators that may serve a Pod, whatever a policy asks for: each of them has something to say at once, or
// within the time that it is given.
func serving(pod *corev1.Pod, podType v1alpha1.PodType) []v1alpha1.Evacuator {
	if podType == v1alpha1.PodTypeStatic {
		return []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassKubelet}}
	}
	return BuiltIn(pod, podType, v1alpha1.EvacuationPolicy{Surge: v1alpha1.SurgeAlways})
}

// SubjectOf describes the Pod of an Evacuation for Resolve. Who asked for it may have limited the evacuators: a tenant must not
// be able to bring back, by an annotation on the Pod, what a policy has left out. NodeMaintenances, which may ask for a surge,
// create their Evacuations resolved; others can't ask for one.
func SubjectOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) Subject {
	return Subject{
		Annotations: pod.Annotations,
		BuiltIn:     BuiltIn(pod, podType, v1alpha1.EvacuationPolicy{}),
		Policy:      v1alpha1.EvacuatorsPolicy(e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation]),
	}
}
