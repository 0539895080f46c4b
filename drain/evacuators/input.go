package evacuators

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// For returns the built-in evacuator that serves a Pod under some policy, an empty one if none does, and the classes of the others. Nothing
// reports progress for those, so they count for nothing, also where a user has listed them in the spec of an Evacuation.
func For(pod *corev1.Pod, podType v1alpha1.PodType) (serving Descriptor, unserved []string) {
	for _, d := range Table {
		if d.Type == podType && (d.Owner == nil || d.Owner(pod) != "") {
			serving = d
		} else {
			unserved = append(unserved, d.Class)
		}
	}
	return serving, unserved
}

// SubjectFor describes a Pod for evacuation.Resolve. All code that resolves the evacuators of a Pod calls it. policy is that of the
// maintenance that requests the evacuation.
func SubjectFor(pod *corev1.Pod, podType v1alpha1.PodType, policy v1alpha1.SharedEvacuationPolicy) evacuation.Subject {
	serving, unserved := For(pod, podType)
	s := evacuation.Subject{Annotations: pod.Annotations, Unserved: unserved, Policy: policy.Evacuators}
	if serving.Requests != nil && serving.Requests(policy, pod) {
		s.BuiltIn = serving.Evacuators()
	}
	return s
}

// Later returns the evacuators that count for an Evacuation although its spec, which is immutable, may not list them. Each is activated
// once, and not if another one has been activated before.
func Later(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, maintenances []*v1alpha1.NodeMaintenance) []v1alpha1.Evacuator {
	later, active := Of(e.ActiveEvacuator()), e.ActiveEvacuator() != ""
	if !active {
		later, _ = For(pod, podType)
	}
	if later.RequestsLater == nil || !active && !later.RequestsLater(pod, maintenances) {
		return nil
	}
	return later.Evacuators()
}

// SubjectOf describes the Pod of an Evacuation for evacuation.Resolve. The policy in the annotation of the Evacuation applies: a tenant
// must not be able to add an evacuator that the policy excludes by annotating the Pod. The terms are those of the Pod's Node.
func SubjectOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, terms evacuation.Terms) evacuation.Subject {
	policy := v1alpha1.SharedEvacuationPolicy{Evacuators: v1alpha1.EvacuatorsPolicy(e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation])}
	if terms.Ordered {
		policy.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
	}
	return SubjectFor(pod, podType, policy)
}

// InputOf returns the input of evacuation.Next for an Evacuation whose Pod has been observed.
func InputOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, terms evacuation.Terms, now time.Time) evacuation.Input {
	serving, unserved := For(pod, podType)
	in := evacuation.Input{
		Evacuation: e, Pod: evacuation.ObservedPod(e, pod, podType), Unserved: unserved, DrainEnds: terms.DrainEnds,
		Suspended: terms.DefersEvacuation(e), TerminatingSince: rules.DeletionRequested(pod), Now: now,
	}
	if evacuation.IsUnresolved(e) { // tenants write the annotations, of which there may be thousands
		in.ResolvedEvacuators, _ = evacuation.Resolve(SubjectOf(e, pod, podType, terms))
	}
	if !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		terms.BuiltInOnly, terms.Maintenances = false, nil
	}
	if serving.IsLast {
		in.Last = serving.Class
	}
	in.Limits, in.Later = terms.Limits(serving.Evacuators()), Later(e, pod, podType, terms.Maintenances)
	return in
}
