package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EvacuationCancellationPolicy says whether an Evacuation may be taken back.
// +kubebuilder:validation:Enum=Allow;Forbid
type EvacuationCancellationPolicy string

const (
	// CancellationAllow: the Evacuation may be deleted before the Pod is gone.
	CancellationAllow EvacuationCancellationPolicy = "Allow"
	// CancellationForbid: the Evacuation can't be deleted until the Pod is gone.
	CancellationForbid EvacuationCancellationPolicy = "Forbid"
)

// LocalPodReference identifies a Pod in the same Namespace.
type LocalPodReference struct {
	// name of the Pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// uid of the Pod, so that a Pod of the same name that comes after it isn't evacuated.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:Format=uuid
	UID string `json:"uid,omitempty"`
}

// Evacuator is someone who can evacuate the Pod.
// +kubebuilder:validation:XValidation:rule="has(self.role) && self.role == 'controller' ? self.priority == 10000 : true",message="an evacuator with role controller has priority 10000"
type Evacuator struct {
	// evacuatorClass identifies the evacuator, a DNS subdomain.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=54
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	EvacuatorClass string `json:"evacuatorClass,omitempty"`

	// priority: the highest one is tried first, equal ones by class name.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Priority int32 `json:"priority"`

	// role of the evacuator. The role controller is for the Pod's own controller.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Role *string `json:"role,omitempty"`
}

// EvacuationSpec says which Pod is to go.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.evacuators) || size(oldSelf.evacuators) == 0 || (has(self.evacuators) && self.evacuators == oldSelf.evacuators)",message="evacuators is immutable once set"
type EvacuationSpec struct {
	// podRef identifies the Pod.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="podRef is immutable"
	PodRef LocalPodReference `json:"podRef,omitempty,omitzero"`

	// progressDeadlineSeconds is how long the active evacuator may go without reporting progress; then the next one is tried,
	// and when none is left the Pod is evicted.
	// +optional
	// +default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=21600
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="progressDeadlineSeconds is immutable"
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`

	// evacuators are resolved from the Pod by the evacuation controller; an instigator leaves them out.
	// +optional
	// +listType=map
	// +listMapKey=evacuatorClass
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.filter(e, has(e.role) && e.role == 'controller').size() <= 1",message="at most one evacuator has role controller"
	// +kubebuilder:validation:XValidation:rule="self.exists(e, has(e.role) && e.role == 'controller') ? self.filter(e, e.priority == 10000).size() == 1 : true",message="priority 10000 is for the evacuator with role controller alone"
	Evacuators []Evacuator `json:"evacuators,omitempty"`
}

// Conditions of an Evacuation and their reasons.
const (
	// EvacuationFailed is True when the Evacuation can't be carried out.
	EvacuationFailed = "Failed"
	// EvacuationEvicting is True while the Pod is being evicted, since no evacuator is left: its message says what the
	// eviction waits for.
	EvacuationEvicting = "Evicting"

	// EvacuationSurged is False where no room is made before the Pod goes, although its maintenance asks for that: its
	// reason is one of package drain/surge.
	EvacuationSurged = "Surged"

	// EvacuationOrdered is False while the Pod waits for other Pods of its StatefulSet: its message names the one that it waits for.
	EvacuationOrdered = "Ordered"

	// Reasons of Ordered.

	// ReasonWaitingForReplica: another replica of the StatefulSet is being evicted or is not ready.
	ReasonWaitingForReplica = "WaitingForReplica"
	// ReasonWaitingForMissingReplica: another replica of the StatefulSet does not exist.
	ReasonWaitingForMissingReplica = "WaitingForMissingReplica"
	// ReasonWaitingForHigherOrdinals: Pods with higher ordinals are evicted before.
	ReasonWaitingForHigherOrdinals = "WaitingForHigherOrdinals"

	ReasonPodNotFound           = "PodNotFound"
	ReasonNoEvacuator           = "NoEvacuator"
	ReasonEvacuatorUnresponsive = "EvacuatorUnresponsive"
	ReasonEvacuatorCompleted    = "EvacuatorCompleted"
	// ReasonEvacuatorNotAllowed: a NodeMaintenance allows built-in evacuators only.
	ReasonEvacuatorNotAllowed = "EvacuatorNotAllowed"

	// ReasonReplacementReturned is the reason of Evicting=False while the Evacuation of a Pod is deferred, because the Pod was created
	// on a cordoned Node after other Pods of its controller were evicted there.
	ReasonReplacementReturned = "ReplacementReturned"

	// Reasons of Evicting while the API server refuses the eviction. What a budget makes the Pod wait for before it is tried has
	// the reasons of drain/budgets.

	// ReasonNamespaceTerminating: the namespace is being deleted, and takes no evictions; its Pods go by themselves.
	ReasonNamespaceTerminating = "NamespaceTerminating"
	// ReasonBudgetRefused: a disruption budget has no room after all.
	ReasonBudgetRefused = "DisruptionBudgetRefused"
	// ReasonBudgetUpdating: a disruption budget is being updated; the API server asks to try again.
	ReasonBudgetUpdating = "DisruptionBudgetUpdating"
	// ReasonMultipleBudgets: more than one disruption budget covers the Pod.
	ReasonMultipleBudgets = "MultipleBudgets"
	// ReasonAdmissionRefused: an admission policy or webhook has refused.
	ReasonAdmissionRefused = "AdmissionRefused"
	// ReasonAdmissionFailed: an admission webhook could not be asked.
	ReasonAdmissionFailed = "AdmissionFailed"
	// ReasonNoResponse: the API server has not answered in time.
	ReasonNoResponse = "NoResponse"
	// ReasonEvictionRefused: it has refused for another reason.
	ReasonEvictionRefused = "EvictionRefused"
)

// EvacuationStatus is the progress of an Evacuation; the active evacuator and the evacuation controller write it.
type EvacuationStatus struct {
	// activeEvacuatorClass is whose turn it is.
	// +optional
	// +kubebuilder:validation:MaxLength=54
	ActiveEvacuatorClass *string `json:"activeEvacuatorClass,omitempty"`

	// activeEvacuatorCompleted is set by the active evacuator when it has done its part, or declines. It is also true when
	// there is no evacuator: then the Pod is evicted.
	// +optional
	ActiveEvacuatorCompleted bool `json:"activeEvacuatorCompleted,omitempty"`

	// evacuationProgressTimestamp is when the active evacuator has last made progress. Not in the future.
	// +optional
	EvacuationProgressTimestamp *metav1.Time `json:"evacuationProgressTimestamp,omitempty"`

	// expectedEvacuationFinishTime is when the active evacuator expects to be done.
	// +optional
	ExpectedEvacuationFinishTime *metav1.Time `json:"expectedEvacuationFinishTime,omitempty"`

	// evacuationCancellationPolicy says whether the Evacuation may be taken back.
	// +optional
	// +default="Allow"
	EvacuationCancellationPolicy EvacuationCancellationPolicy `json:"evacuationCancellationPolicy,omitempty"`

	// failedEvictionCounter counts the evictions that were refused. It never decreases.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="failedEvictionCounter never decreases"
	FailedEvictionCounter int32 `json:"failedEvictionCounter,omitempty"`

	// message tells people how the evacuation goes.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Message string `json:"message,omitempty"`

	// conditions tell more.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Evacuation asks for one Pod to leave its Node. See KEP-4563 (mid 2024).
//
// Its name is the Pod's UID, a dash, and the first 150 characters of the Pod's name without trailing dashes and dots.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=evacuations,scope=Namespaced,shortName=evac,categories=cluster-api
// +kubebuilder:validation:XValidation:rule="self.metadata.name.startsWith(self.spec.podRef.uid + '-') && !self.metadata.name.endsWith('-') && self.metadata.name == self.spec.podRef.uid + '-' + self.spec.podRef.name.substring(0, size(self.metadata.name) - size(self.spec.podRef.uid) - 1 <= size(self.spec.podRef.name) ? size(self.metadata.name) - size(self.spec.podRef.uid) - 1 : 0)",message="metadata.name is podRef.uid, a dash, and the start of podRef.name"
// +kubebuilder:validation:XValidation:rule="size(self.spec.podRef.name) <= 150 ? self.metadata.name == self.spec.podRef.uid + '-' + self.spec.podRef.name : self.spec.podRef.name.substring(size(self.metadata.name) - size(self.spec.podRef.uid) - 1, 150).matches('^[-.]*$')",message="metadata.name takes the first 150 characters of podRef.name, trailing dashes and dots trimmed"
// +kubebuilder:printcolumn:name="Pod",type="string",JSONPath=".spec.podRef.name"
// +kubebuilder:printcolumn:name="Evacuator",type="string",JSONPath=".status.activeEvacuatorClass",description="Whose turn it is"
// +kubebuilder:printcolumn:name="Refused",type="integer",JSONPath=".status.failedEvictionCounter",description="Evictions that were refused"
// +kubebuilder:printcolumn:name="Cancellation",type="string",JSONPath=".status.evacuationCancellationPolicy",priority=1
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.message"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type Evacuation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which Pod is to go.
	// +required
	Spec EvacuationSpec `json:"spec,omitempty,omitzero"`

	// status is the progress.
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

// GetConditions returns the conditions.
func (e *Evacuation) GetConditions() []metav1.Condition { return e.Status.Conditions }

// SetConditions replaces the conditions.
func (e *Evacuation) SetConditions(conditions []metav1.Condition) { e.Status.Conditions = conditions }
