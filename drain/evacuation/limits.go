package evacuation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Limits are what NodeMaintenances with evacuators BuiltIn impose on an Evacuation of which they are an instigator, also on one that
// another actor created: the evacuators and the progress deadline of an Evacuation that a tenant has created must not block the drain
// of a Node.
//
// A nil pointer is no limit.
type Limits struct {
	// BuiltIn are the evacuators that may be activated: the built-in ones that serve the Pod.
	BuiltIn []v1alpha1.Evacuator
	// ProgressDeadline is an upper bound for the progress deadline of the Evacuation. Zero: no bound.
	ProgressDeadline time.Duration
}

// Limits returns the limits of an Evacuation of a Pod on the Node that the terms are for.
func (t Terms) Limits(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType) *Limits {
	if !t.BuiltInOnly || !HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		return nil
	}
	return &Limits{BuiltIn: serving(pod, podType), ProgressDeadline: t.ProgressDeadline}
}

// allow reports whether an evacuator may be active.
func (l *Limits) allow(class string) bool { return l == nil || contains(l.BuiltIn, class) }

func contains(evacuators []v1alpha1.Evacuator, class string) bool {
	return slices.ContainsFunc(evacuators, func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == class })
}

// BuiltIn returns the built-in evacuators that serve a Pod: the one of the workload that controls it, or none. All code that resolves
// the evacuators of a Pod calls it. policy is that of the maintenance that requests the evacuation.
//
// BuiltIn returns none for static Pods: see package staticpod.
func BuiltIn(pod *corev1.Pod, podType v1alpha1.PodType, policy v1alpha1.SharedEvacuationPolicy) []v1alpha1.Evacuator {
	var class string
	switch {
	case podType == v1alpha1.PodTypeDaemonSet:
		class = v1alpha1.EvacuatorClassDaemonSet
	case podType != v1alpha1.PodTypeDefault:
		return nil
	case surge.Allows(policy.Surge, pod) && surge.DeploymentOf(pod) != "":
		class = v1alpha1.EvacuatorClassDeployment
	case policy.StatefulSetPods == v1alpha1.StatefulSetPodsOrdered && statefulset.SetOf(pod) != "":
		class = v1alpha1.EvacuatorClassStatefulSet
	default:
		return nil
	}
	return []v1alpha1.Evacuator{controllerEvacuator(class)}
}

func controllerEvacuator(class string) v1alpha1.Evacuator {
	role := v1alpha1.EvacuatorRoleController
	return v1alpha1.Evacuator{EvacuatorClass: class, Priority: v1alpha1.EvacuatorControllerPriority, Role: &role}
}

// Surges reports whether NodeMaintenances request a surge for a Pod. They may have done so after its Evacuation was created.
func (t Terms) Surges(pod *corev1.Pod, podType v1alpha1.PodType) bool {
	policy := v1alpha1.SharedEvacuationPolicy{Surge: surge.PolicyFor(pod, t.Maintenances)}
	return contains(BuiltIn(pod, podType, policy), v1alpha1.EvacuatorClassDeployment)
}

// WithSurge returns the evacuators in the spec of an Evacuation, and that of Deployments if a surge is requested for the Pod: the spec is
// immutable. The evacuator is activated once, and not if another one has been activated before.
func WithSurge(e *v1alpha1.Evacuation, surges bool) []v1alpha1.Evacuator {
	const class = v1alpha1.EvacuatorClassDeployment
	activated := e.ActiveEvacuator()
	if surges && activated == "" || activated == class {
		if !contains(e.Spec.Evacuators, class) {
			return append(slices.Clone(e.Spec.Evacuators), controllerEvacuator(class))
		}
	}
	return e.Spec.Evacuators
}

// serving returns all built-in evacuators that may serve a Pod under any policy. Each of them reports progress immediately, or before
// the progress deadline.
func serving(pod *corev1.Pod, podType v1alpha1.PodType) []v1alpha1.Evacuator {
	if podType == v1alpha1.PodTypeStatic {
		return []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassKubelet}}
	}
	return BuiltIn(pod, podType, v1alpha1.SharedEvacuationPolicy{Surge: v1alpha1.SurgeAlways, StatefulSetPods: v1alpha1.StatefulSetPodsOrdered})
}

// Unserved returns the classes of built-in evacuators that serve a Pod under no policy. Nothing reports progress for them, so they count
// for nothing, also where a user has listed them in the spec of an Evacuation.
func Unserved(pod *corev1.Pod, podType v1alpha1.PodType) []string {
	served := serving(pod, podType)
	return slices.DeleteFunc(slices.Clone(builtIn), func(class string) bool { return contains(served, class) })
}

// builtIn are the classes of the built-in evacuators.
var builtIn = []string{
	v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassStatefulSet, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet,
}

// IsBuiltIn reports whether an evacuator class is built in. Tenants may write such a class into an Evacuation of any Pod, see Unserved.
func IsBuiltIn(class string) bool { return slices.Contains(builtIn, class) }

// SubjectOf describes the Pod of an Evacuation for Resolve. The policy in the annotation of the Evacuation applies: a tenant must not be
// able to add an evacuator that the policy excludes by annotating the Pod. Next adds the evacuator of Deployments, see WithSurge. The terms
// are those of the Pod's Node.
func SubjectOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, terms Terms) Subject {
	policy := v1alpha1.SharedEvacuationPolicy{}
	if terms.Ordered {
		policy.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
	}
	return Subject{
		Annotations: pod.Annotations, Unserved: Unserved(pod, podType), BuiltIn: BuiltIn(pod, podType, policy),
		Policy: v1alpha1.EvacuatorsPolicy(e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation]),
	}
}
