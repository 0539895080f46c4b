package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EvictedPods counts Pods that a drain has evicted, by what became of them. Pods of DaemonSets, static Pods and Pods that finished are not
// counted. A Pod counts as replaced by a Pod of the same controller that was created after the start of its evacuation. evicted is the sum
// of the other numbers.
type EvictedPods struct {
	// evicted is the number of Pods that terminated because of the drain.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Evicted int32 `json:"evicted"`

	// ready is the number of Pods that were replaced by a Pod that is ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Ready int32 `json:"ready,omitempty"`

	// notReady is the number of Pods that were replaced by a Pod that is scheduled to a Node, and not ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NotReady int32 `json:"notReady,omitempty"`

	// pending is the number of Pods that were replaced by a Pod that is not scheduled to a Node.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pending int32 `json:"pending,omitempty"`

	// notReplaced is the number of Pods without a replacement: their controller has fewer Pods than it wants, or they have no controller.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NotReplaced int32 `json:"notReplaced,omitempty"`

	// notNeeded is the number of Pods without a replacement whose controller has as many Pods as it wants, or does not exist any more.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NotNeeded int32 `json:"notNeeded,omitempty"`

	// unknown is the number of Pods of which this is not known: it could not be read, or the manager was restarted during the drain.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Unknown int32 `json:"unknown,omitempty"`
}

// EvictedApplication is what became of the evicted Pods of one controller.
type EvictedApplication struct {
	// controller is the kind, namespace and name of the Pods' controller: "Deployment web/shop". A kind that is not built into Kubernetes
	// is followed by its group: "StatefulSet.apps.kruise.io db/main". For Pods without a controller, it is Pod with their namespace and
	// their name or generateName.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=640
	Controller string `json:"controller,omitempty"`

	// since is the start of the first evacuation, by the clock of the workload cluster. Older Pods do not count as replacements.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="since must be a time as in RFC 3339, from 1970 to 9998"
	Since metav1.Time `json:"since,omitempty,omitzero"`

	// pods counts the evicted Pods of the controller.
	// +optional
	Pods EvictedPods `json:"pods,omitempty,omitzero"`

	// why is the first reason for which a Pod is not replaced by a ready one, as a sentence: for a Pending Pod the message of the
	// scheduler.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Why string `json:"why,omitempty"`
}

// DrainOutcome is what became of the Pods that a drain has evicted. It is read at the end of the drain, and 1, 3 and 10 minutes later.
// While Pods are Pending, not replaced or unknown, it is then read every 10 minutes until one hour after the end.
type DrainOutcome struct {
	// endTime is the time at which the drain ended.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="endTime must be a time as in RFC 3339, from 1970 to 9998"
	EndTime metav1.Time `json:"endTime,omitempty,omitzero"`

	// readTime is the time of the last reading. What could not be read then is unknown. It is not set before the first reading.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="readTime must be a time as in RFC 3339, from 1970 to 9998"
	ReadTime *metav1.Time `json:"readTime,omitempty"`

	// pods counts the evicted Pods.
	// +optional
	Pods EvictedPods `json:"pods,omitempty,omitzero"`

	// applications are the controllers with Pods that are not replaced by ready ones. The list has at most 64 entries. Evicted Pods of
	// other controllers count as unknown.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Applications []EvictedApplication `json:"applications,omitempty"`

	// message says why Pods are unknown for good.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// RecentDrain is a drain of a deleted Machine that has ended.
type RecentDrain struct {
	// machineUID is the UID of the Machine.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	MachineUID string `json:"machineUID,omitempty"`

	// machine is the name of the Machine.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`

	// cluster is the name of its Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Cluster string `json:"cluster,omitempty"`

	// node is the name of its Node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	DrainOutcome `json:",inline"`
}
