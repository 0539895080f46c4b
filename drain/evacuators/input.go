package evacuators

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Requested returns the built-in evacuators of a Pod: the one that serves it, or none. All code that resolves the evacuators of a Pod calls
// it. policy is that of the maintenance that requests the evacuation.
func Requested(pod *corev1.Pod, podType v1alpha1.PodType, policy v1alpha1.SharedEvacuationPolicy) (requested []v1alpha1.Evacuator) {
	for _, d := range table {
		if d.serves(pod, podType) && d.Requests != nil && d.Requests(policy, pod) {
			requested = append(requested, d.evacuator())
		}
	}
	return requested
}

// Unserved returns the classes of built-in evacuators that serve a Pod under no policy. Nothing reports progress for them, so they count
// for nothing, also where a user has listed them in the spec of an Evacuation.
func Unserved(pod *corev1.Pod, podType v1alpha1.PodType) (classes []string) {
	for _, d := range table {
		if !d.serves(pod, podType) {
			classes = append(classes, d.Class)
		}
	}
	return classes
}

// Later returns the evacuators that count for an Evacuation although its spec, which is immutable, may not list them. Each is activated
// once, and not if another one has been activated before.
func Later(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, maintenances []*v1alpha1.NodeMaintenance) (later []v1alpha1.Evacuator) {
	active := e.ActiveEvacuator()
	for _, d := range table {
		if d.RequestsLater != nil && (active == d.Class || active == "" && d.serves(pod, podType) && d.RequestsLater(pod, maintenances)) {
			later = append(later, d.evacuator())
		}
	}
	return later
}

// SubjectOf describes the Pod of an Evacuation for evacuation.Resolve. The policy in the annotation of the Evacuation applies: a tenant
// must not be able to add an evacuator that the policy excludes by annotating the Pod. The terms are those of the Pod's Node.
func SubjectOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, terms evacuation.Terms) evacuation.Subject {
	policy := v1alpha1.SharedEvacuationPolicy{}
	if terms.Ordered {
		policy.StatefulSetPods = v1alpha1.StatefulSetPodsOrdered
	}
	return evacuation.Subject{
		Annotations: pod.Annotations, Unserved: Unserved(pod, podType), BuiltIn: Requested(pod, podType, policy),
		Policy: v1alpha1.EvacuatorsPolicy(e.Annotations[v1alpha1.EvacuatorsPolicyAnnotation]),
	}
}

// InputOf returns the input of evacuation.Next for an Evacuation whose Pod has been observed.
func InputOf(e *v1alpha1.Evacuation, pod *corev1.Pod, podType v1alpha1.PodType, terms evacuation.Terms, now time.Time) evacuation.Input {
	in := evacuation.Input{
		Evacuation: e, Pod: evacuation.ObservedPod(e, pod, podType), Unserved: Unserved(pod, podType), DrainEnds: terms.DrainEnds,
		Suspended: terms.DefersEvacuation(e), TerminatingSince: rules.DeletionRequested(pod), Now: now,
	}
	if evacuation.IsUnresolved(e) { // tenants write the annotations, of which there may be thousands
		in.ResolvedEvacuators, _ = evacuation.Resolve(SubjectOf(e, pod, podType, terms))
	}
	if !evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		terms.BuiltInOnly, terms.Maintenances = false, nil
	}
	var serving []v1alpha1.Evacuator
	for _, d := range table {
		if !d.serves(pod, podType) {
			continue
		}
		if serving = append(serving, d.evacuator()); d.IsLast {
			in.Last = d.Class
		}
	}
	in.Limits, in.Later = terms.Limits(serving), Later(e, pod, podType, terms.Maintenances)
	return in
}
