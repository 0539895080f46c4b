package evacuation

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// BuiltIn returns the built-in evacuators that serve a Pod: the one of the workload that controls it, or none. All code that resolves
// the evacuators of a Pod calls it. policy is that of the maintenance that requests the evacuation.
//
// BuiltIn returns none for static Pods: see package staticpods.
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

// serving returns all built-in evacuators that may serve a Pod under any policy. Each of them reports progress immediately, or before
// the progress deadline.
func serving(pod *corev1.Pod, podType v1alpha1.PodType) []v1alpha1.Evacuator {
	if podType == v1alpha1.PodTypeStatic {
		return []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassKubelet}}
	}
	return BuiltIn(pod, podType, v1alpha1.EvacuationPolicy{Surge: v1alpha1.SurgeAlways})
}

// SubjectOf describes the Pod of an Evacuation for Resolve. The policy in the annotation of the Evacuation applies: a tenant must not
// be able to add an evacuator that the policy excludes by annotating the Pod. A surge is never allowed here: NodeMaintenances,
// which may request one, create their Evacuations resolved, and other instigators cannot request one.
func SubjectOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) Subject {
	return Subject{
		Annotations: pod.Annotations,
		BuiltIn:     BuiltIn(pod, podType, v1alpha1.EvacuationPolicy{}),
		Policy:      v1alpha1.EvacuatorsPolicy(e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation]),
	}
}
