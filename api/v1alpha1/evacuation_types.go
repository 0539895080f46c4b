package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// EvacuationCancellationPolicy says whether an Evacuation can be cancelled, that is, deleted before its Pod.
// +kubebuilder:validation:Enum=Allow;Forbid
type EvacuationCancellationPolicy string

const (
	// CancellationAllow means that the Evacuation can be deleted before the Pod.
	CancellationAllow EvacuationCancellationPolicy = "Allow"
	// CancellationForbid means that the Evacuation cannot be deleted before the Pod.
	CancellationForbid EvacuationCancellationPolicy = "Forbid"
)

// LocalPodReference refers to a Pod in the same Namespace.
type LocalPodReference struct {
	// name of the Pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// uid of the Pod. A later Pod of the same name is not evacuated.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:Format=uuid
	UID string `json:"uid,omitempty"`
}

// Evacuator is a controller that can remove the Pod in its own way before the Pod is evicted.
// +kubebuilder:validation:XValidation:rule="has(self.role) && self.role == 'controller' ? self.priority == 10000 : true",message="an evacuator with role controller must have priority 10000"
type Evacuator struct {
	// evacuatorClass identifies the evacuator. It is a DNS subdomain.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=54
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	EvacuatorClass string `json:"evacuatorClass,omitempty"`

	// priority determines the order of evacuators. The evacuator with the highest priority becomes active first. Evacuators of equal
	// priority become active in the order of their class names.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Priority int32 `json:"priority"`

	// role of the evacuator. The role controller is reserved for the controller of the Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Role *string `json:"role,omitempty"`
}

// EvacuationSpec is the request to remove one Pod.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.evacuators) || size(oldSelf.evacuators) == 0 || (has(self.evacuators) && self.evacuators == oldSelf.evacuators)",message="evacuators is immutable after it is set"
type EvacuationSpec struct {
	// podRef refers to the Pod.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="podRef is immutable"
	PodRef LocalPodReference `json:"podRef,omitempty,omitzero"`

	// progressDeadlineSeconds is the longest time in seconds that the active evacuator may take to report progress. When the deadline is
	// exceeded, the next evacuator becomes active. After the last evacuator, the Pod is evicted.
	// +optional
	// +default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=21600
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="progressDeadlineSeconds is immutable"
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`

	// evacuators are the evacuators of the Pod. The controller sets them from the Pod's annotations. Instigators omit them.
	// +optional
	// +listType=map
	// +listMapKey=evacuatorClass
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.filter(e, has(e.role) && e.role == 'controller').size() <= 1",message="at most one evacuator can have role controller"
	// +kubebuilder:validation:XValidation:rule="self.exists(e, has(e.role) && e.role == 'controller') ? self.filter(e, e.priority == 10000).size() == 1 : true",message="priority 10000 is reserved for the evacuator with role controller"
	Evacuators []Evacuator `json:"evacuators,omitempty"`
}

// Condition types of Evacuations, and their reasons.
const (
	// EvacuationFailed is True if the Evacuation cannot be carried out.
	EvacuationFailed = "Failed"
	// EvacuationEvicting is True while the controller evicts the Pod, because no evacuator is left. The message says what the eviction
	// waits for.
	EvacuationEvicting = "Evicting"

	// EvacuationSurged is True while the Deployment is scaled or restarted to replace the Pod. The reason is that of the event on the
	// Deployment. It is False if the Pod is evicted without that, although a NodeMaintenance requests it.
	EvacuationSurged = "Surged"

	// EvacuationOrdered is False while the Pod waits for another Pod of its StatefulSet. The message names that Pod.
	EvacuationOrdered = "Ordered"

	// ReasonWaitingForReplica means that another replica of the StatefulSet is being evicted or is not ready.
	ReasonWaitingForReplica = "WaitingForReplica"
	// ReasonWaitingForMissingReplica means that another replica of the StatefulSet does not exist.
	ReasonWaitingForMissingReplica = "WaitingForMissingReplica"
	// ReasonWaitingForHigherOrdinals means that Pods with higher ordinals are evicted first.
	ReasonWaitingForHigherOrdinals = "WaitingForHigherOrdinals"

	// ReasonPodNotFound means that no Pod has the name and UID of podRef.
	ReasonPodNotFound = "PodNotFound"
	// ReasonNoEvacuator means that the Pod is evicted because it has no evacuator.
	ReasonNoEvacuator = "NoEvacuator"
	// ReasonEvacuatorUnresponsive means that the Pod is evicted because its last evacuator exceeded the progress deadline.
	ReasonEvacuatorUnresponsive = "EvacuatorUnresponsive"
	// ReasonEvacuatorCompleted means that the Pod is evicted because its last evacuator completed and did not delete it.
	ReasonEvacuatorCompleted = "EvacuatorCompleted"
	// ReasonEvacuatorNotAllowed means that a NodeMaintenance allows only built-in evacuators.
	ReasonEvacuatorNotAllowed = "EvacuatorNotAllowed"

	// ReasonReplacementReturned is the reason of Evicting=False while the Evacuation of a Pod is deferred. The Pod was created on a
	// cordoned Node from which other Pods of its controller had been evicted.
	ReasonReplacementReturned = "ReplacementReturned"

	// Reasons of Evicting while the API server refuses the eviction. The reasons of an eviction that has not been attempted, because a
	// PodDisruptionBudget allows no disruption, are in package drain/budgets.

	// ReasonNamespaceTerminating means that the Namespace is being deleted and allows no evictions. Its Pods are deleted with it.
	ReasonNamespaceTerminating = "NamespaceTerminating"
	// ReasonDisruptionBudgetRefused means that a PodDisruptionBudget allows no disruption.
	ReasonDisruptionBudgetRefused = "DisruptionBudgetRefused"
	// ReasonDisruptionBudgetUpdating means that the status of a PodDisruptionBudget is not up to date. The API server allows a retry later.
	ReasonDisruptionBudgetUpdating = "DisruptionBudgetUpdating"
	// ReasonMultipleBudgets means that more than one PodDisruptionBudget selects the Pod, which Kubernetes does not support.
	ReasonMultipleBudgets = "MultipleBudgets"
	// ReasonWebhookRefused means that an admission webhook denied the eviction.
	ReasonWebhookRefused = "WebhookRefused"
	// ReasonAdmissionPolicyRefused means that an admission policy denied the eviction, such as a ValidatingAdmissionPolicy.
	ReasonAdmissionPolicyRefused = "AdmissionPolicyRefused"
	// ReasonAdmissionRefused means that another part of the API server's admission denied the eviction.
	ReasonAdmissionRefused = "AdmissionRefused"
	// ReasonAdmissionFailed means that the API server failed to call an admission webhook.
	ReasonAdmissionFailed = "AdmissionFailed"
	// ReasonEvictionForbidden means that the manager is not allowed to evict the Pod.
	ReasonEvictionForbidden = "EvictionForbidden"
	// ReasonAPIServerBusy means that the API server processes no more requests now, because of API Priority and Fairness for example.
	ReasonAPIServerBusy = "APIServerBusy"
	// ReasonNoResponse means that the API server did not respond in time.
	ReasonNoResponse = "NoResponse"
	// ReasonEvictionRefused means that the API server refused the eviction for another reason.
	ReasonEvictionRefused = "EvictionRefused"
)

// EvacuationStatus is the progress of an Evacuation. The active evacuator and the controller write it.
type EvacuationStatus struct {
	// activeEvacuatorClass is the class of the evacuator that currently acts on the Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=54
	ActiveEvacuatorClass *string `json:"activeEvacuatorClass,omitempty"`

	// activeEvacuatorCompleted is true when the active evacuator has finished or declined, which the evacuator reports itself. It is
	// also true if there is no evacuator. Then the Pod is evicted. An Evacuation whose Pod is evicted at once may have no status.
	// +optional
	ActiveEvacuatorCompleted bool `json:"activeEvacuatorCompleted,omitempty"`

	// evacuationProgressTimestamp is the time at which the active evacuator last made progress. It must not be in the future.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="evacuationProgressTimestamp must be a time as in RFC 3339, from 1970 to 9998"
	EvacuationProgressTimestamp *metav1.Time `json:"evacuationProgressTimestamp,omitempty"`

	// expectedEvacuationFinishTime is the time at which the active evacuator expects to finish.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="expectedEvacuationFinishTime must be a time as in RFC 3339, from 1970 to 9998"
	ExpectedEvacuationFinishTime *metav1.Time `json:"expectedEvacuationFinishTime,omitempty"`

	// evacuationCancellationPolicy says whether the Evacuation can be cancelled. The active evacuator sets it.
	// +optional
	// +default="Allow"
	EvacuationCancellationPolicy EvacuationCancellationPolicy `json:"evacuationCancellationPolicy,omitempty"`

	// failedEvictionCounter is the number of evictions that the API server refused. It never decreases.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailedEvictionCounter int32 `json:"failedEvictionCounter,omitempty"`

	// failedEvictionTime is the time of the last eviction that the API server refused.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="failedEvictionTime must be a time as in RFC 3339, from 1970 to 9998"
	FailedEvictionTime *metav1.Time `json:"failedEvictionTime,omitempty"`

	// message describes the progress for people.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Message string `json:"message,omitempty"`

	// conditions are Failed, Evicting, Surged and Ordered, each if it applies.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime >= timestamp('1970-01-01T00:00:00Z') && self.lastTransitionTime < timestamp('9999-01-01T00:00:00Z')",message="lastTransitionTime must be a time as in RFC 3339, from 1970 to 9998"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Evacuation is a request to remove one Pod from its Node. See KEP-4563 (as of mid 2024).
//
// Its name is the UID of the Pod, a dash, and the first 150 characters of the name of the Pod without trailing dashes and dots.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=evacuations,scope=Namespaced,shortName=evac,categories=cluster-api
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith(self.spec.podRef.uid + '-') && !self.metadata.name.endsWith('-') && self.metadata.name == self.spec.podRef.uid + '-' + self.spec.podRef.name.substring(0, size(self.metadata.name) - size(self.spec.podRef.uid) - 1 <= size(self.spec.podRef.name) ? size(self.metadata.name) - size(self.spec.podRef.uid) - 1 : 0)",message="metadata.name must be podRef.uid, a dash, and the start of podRef.name"
// +kubebuilder:validation:XValidation:rule="size(self.spec.podRef.name) <= 150 ? self.metadata.name == self.spec.podRef.uid + '-' + self.spec.podRef.name : self.spec.podRef.name.substring(size(self.metadata.name) - size(self.spec.podRef.uid) - 1, 150).matches('^[-.]*$')",message="metadata.name must contain the first 150 characters of podRef.name without trailing dashes and dots"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.failedEvictionCounter) || oldSelf.status.failedEvictionCounter == 0 || (has(self.status) && has(self.status.failedEvictionCounter) && self.status.failedEvictionCounter >= oldSelf.status.failedEvictionCounter)",message="status.failedEvictionCounter must not decrease"
// +kubebuilder:printcolumn:name="Pod",type="string",JSONPath=".spec.podRef.name"
// +kubebuilder:printcolumn:name="Evacuator",type="string",JSONPath=".status.activeEvacuatorClass",description="Active evacuator"
// +kubebuilder:printcolumn:name="Refused",type="integer",JSONPath=".status.failedEvictionCounter",description="Evictions that the API server refused"
// +kubebuilder:printcolumn:name="Cancellation",type="string",JSONPath=".status.evacuationCancellationPolicy",priority=1
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.message"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type Evacuation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the request.
	// +required
	Spec EvacuationSpec `json:"spec,omitempty,omitzero"`

	// status is the observed progress.
	// +optional
	Status EvacuationStatus `json:"status,omitempty,omitzero"`
}

// EvacuationList is a list of Evacuations.
// +kubebuilder:object:root=true
type EvacuationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Evacuation `json:"items"`
}

// ActiveEvacuator returns the class of the evacuator that was activated last, also if it has completed. Empty: none has been activated.
func (e *Evacuation) ActiveEvacuator() string { return ptr.Deref(e.Status.ActiveEvacuatorClass, "") }

// IsAssignedTo reports whether an evacuator is active and has not completed: it is to act on the Pod.
func (e *Evacuation) IsAssignedTo(class string) bool {
	return e.ActiveEvacuator() == class && !e.Status.ActiveEvacuatorCompleted
}
