// Package evacuators has the table of the built-in evacuators, which says what each of them serves, when it is requested and what its Pods
// wait for. It builds the input of evacuation.Next, which knows no evacuator.
package evacuators

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Descriptor describes a built-in evacuator.
type Descriptor struct {
	// Class is its name in Evacuations and in metrics.
	Class string
	// Type is the type of the Pods that it serves, and Owner returns the name of the workload that it serves, "" for other Pods. Nil: it
	// serves all Pods of the type. At most one evacuator serves a Pod. It reports progress immediately, or before the progress deadline.
	Type  v1alpha1.PodType
	Owner func(*corev1.Pod) string
	// Requests reports whether the policy of a NodeMaintenance requests it for a Pod that it serves. Nil: no policy does.
	Requests func(v1alpha1.SharedEvacuationPolicy, *corev1.Pod) bool
	// RequestsLater reports whether NodeMaintenances request it for a Pod also after its Evacuation was created. Nil: they do not.
	RequestsLater func(*corev1.Pod, []*v1alpha1.NodeMaintenance) bool
	// IsLast means that it is the last evacuator of its Pods, see evacuation.Input.
	IsLast bool
	// Orders means that it only orders the evictions of its Pods: those that wait count as blocked, like those that wait for budgets.
	Orders bool
	// WatchesOnDemand means that its activation starts the watches that an idle workload cluster does not need, besides those of Nodes.
	WatchesOnDemand bool
	// Wait returns the reason for which a Pod waits while it is active: one of Reasons, or "" for that of any evacuator. Nil: always "".
	Wait    func(*v1alpha1.Evacuation) string
	Reasons []string
	// Span is the name of the spans of these waits, and Section the section about them in the guide about drains that are stuck, if any.
	Span, Section string
}

// reasonSurge is the wait for the replica that the evacuator of Deployments adds.
const reasonSurge = "Surge"

// Table has the built-in evacuators.
var Table = []Descriptor{{
	Class: v1alpha1.EvacuatorClassDeployment, Type: v1alpha1.PodTypeDefault, Owner: rules.DeploymentOf,
	Requests: func(policy v1alpha1.SharedEvacuationPolicy, pod *corev1.Pod) bool {
		return surge.Allows(policy.Surge, pod)
	},
	RequestsLater: func(pod *corev1.Pod, maintenances []*v1alpha1.NodeMaintenance) bool {
		return surge.PolicyFor(pod, maintenances) != v1alpha1.SurgeNever
	},
	WatchesOnDemand: true,
	Wait:            func(*v1alpha1.Evacuation) string { return reasonSurge }, Reasons: []string{reasonSurge}, Span: "surge",
}, {
	Class: v1alpha1.EvacuatorClassStatefulSet, Type: v1alpha1.PodTypeDefault, Owner: statefulset.SetOf,
	Requests: func(policy v1alpha1.SharedEvacuationPolicy, _ *corev1.Pod) bool {
		return policy.StatefulSetPods == v1alpha1.StatefulSetPodsOrdered
	},
	Orders: true,
	Wait:   statefulset.WaitReason, Reasons: statefulset.WaitReasons, Span: "await StatefulSet order",
	Section: "a-pod-waits-for-another-replica-of-its-statefulset",
}, {
	Class: v1alpha1.EvacuatorClassDaemonSet, Type: v1alpha1.PodTypeDaemonSet, IsLast: true,
	Requests: func(v1alpha1.SharedEvacuationPolicy, *corev1.Pod) bool { return true },
}, {
	Class: v1alpha1.EvacuatorClassKubelet, Type: v1alpha1.PodTypeStatic, // package staticpod requests it
}}

// Of returns the descriptor of a class, an empty one if it is not built in. Tenants may write a built-in class into an Evacuation of any
// Pod, see For.
func Of(class string) Descriptor {
	if i := slices.IndexFunc(Table, func(d Descriptor) bool { return d.Class == class }); i >= 0 {
		return Table[i]
	}
	return Descriptor{}
}

// IsBuiltIn reports whether an evacuator class is built in.
func IsBuiltIn(class string) bool { return Of(class).Class != "" }

// WaitReason returns the reason for which a Pod waits while the evacuator is active, "" for that of any evacuator.
func (d Descriptor) WaitReason(e *v1alpha1.Evacuation) string {
	if d.Wait == nil {
		return ""
	}
	return d.Wait(e)
}

// Evacuators returns the evacuator as it is in the spec of Evacuations, none for an empty descriptor.
func (d Descriptor) Evacuators() []v1alpha1.Evacuator {
	if d.Class == "" {
		return nil
	}
	role := v1alpha1.EvacuatorRoleController
	return []v1alpha1.Evacuator{{EvacuatorClass: d.Class, Priority: v1alpha1.EvacuatorControllerPriority, Role: &role}}
}
