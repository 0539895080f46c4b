package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of NodeMaintenances, and their reasons.
const (
	// NodeMaintenanceDrained is True while no selected Node has a live Pod that must be drained, and all of them could be cordoned.
	NodeMaintenanceDrained = "Drained"
	// NodeMaintenanceCordoned is True while every selected Node is unschedulable.
	NodeMaintenanceCordoned = "Cordoned"
	// NodeMaintenanceSelectionPlausible is False while nodeSelector selects all Nodes, all control plane Nodes, no Node, or more than
	// nodeStatuses can have. It is only a warning: nothing waits for it.
	NodeMaintenanceSelectionPlausible = "SelectionPlausible"

	// NodeMaintenancePodsRemaining is True while the selected Nodes have Pods of DaemonSets that the rules drain and that cannot be kept off
	// the Nodes, or that the rules skip and that would not be recreated. The drain does not wait for them. The message names the DaemonSets.
	NodeMaintenancePodsRemaining = "PodsRemaining"

	// NodeMaintenanceFinalEvictionAttempt is set shortly before the drain timeout. It is True when every Pod that must be drained has had
	// an eviction attempt, regardless of its step, and the Pods that terminate have had their grace periods. The Machine's hook stays
	// until the manager has found that, at most for ten minutes and 30 s.
	NodeMaintenanceFinalEvictionAttempt = "FinalEvictionAttempt"

	// ReasonAllPodsAttempted means that every Pod that must be drained has had its final eviction attempt.
	ReasonAllPodsAttempted = "AllPodsAttempted"
	// ReasonAttemptingPods means that some Pods that must be drained have not had their final eviction attempt, or have not been deleted
	// although onTimeout is Delete.
	ReasonAttemptingPods = "AttemptingPods"
	// ReasonPodsTerminating means that Pods that were evicted or deleted are terminating within their grace periods.
	ReasonPodsTerminating = "PodsTerminating"

	// NodeMaintenanceMachineDeleted is True while the Node exists although the Machine that the NodeMaintenance serves does not. The
	// NodeMaintenance stays in its stage until a user completes it or deletes the Node.
	NodeMaintenanceMachineDeleted = "MachineDeleted"

	// NodeMaintenanceRestoreFailed is True while the API server refuses to restore a Node, to change its conditions or to withdraw from an
	// Evacuation. The message names them. The request is repeated, and a deleted NodeMaintenance keeps its finalizer.
	NodeMaintenanceRestoreFailed = "RestoreFailed"
	// ReasonRequestRefused means that an admission policy, webhook, quota or role refuses a request of the manager.
	ReasonRequestRefused = "RequestRefused"

	// NodeMaintenanceReconciling is True while selected Nodes are not cordoned or drained yet, although the stage requires it. Otherwise the
	// NodeMaintenance does not have the condition. Tools that compute the health of objects with kstatus, such as Flux, read it.
	NodeMaintenanceReconciling = "Reconciling"

	// NodeMaintenanceStalled is True, in place of Reconciling, while the drain waits for an invalid drain rule to be fixed. Otherwise the
	// NodeMaintenance does not have the condition.
	NodeMaintenanceStalled = "Stalled"

	// ReasonNodeExists means that the Node of a deleted Machine exists.
	ReasonNodeExists = "NodeExists"

	// ReasonDaemonSetToleratesMaintenance means that a DaemonSet tolerates the taint NoDaemonSetPodsTaint and would recreate evicted Pods.
	ReasonDaemonSetToleratesMaintenance = "DaemonSetToleratesMaintenance"
	// ReasonDaemonSetPodsNotRecreated means that the drain rules skip the Pods of a DaemonSet on a Node with the taint NoDaemonSetPodsTaint:
	// one that is deleted, for example during a rollout, is not recreated before the taint is removed.
	ReasonDaemonSetPodsNotRecreated = "DaemonSetPodsNotRecreated"

	// ReasonDrained means that all selected Nodes are drained.
	ReasonDrained = "Drained"
	// ReasonDraining means that a selected Node has a live Pod that must be drained.
	ReasonDraining = "Draining"
	// ReasonNotDraining means that the stage is not Drain.
	ReasonNotDraining = "NotDraining"
	// ReasonNoNodesSelected means that the nodeSelector selects no Node.
	ReasonNoNodesSelected = "NoNodesSelected"
	// ReasonPodsNotObserved means that the Pods of a selected Node are not known yet.
	ReasonPodsNotObserved = "PodsNotObserved"
	// ReasonCordoned means that all selected Nodes are unschedulable.
	ReasonCordoned = "Cordoned"
	// ReasonNotCordoned means that the stage does not cordon Nodes.
	ReasonNotCordoned = "NotCordoned"
	// ReasonCordonFailed means that the API server rejects the cordon of a Node, or does not answer the request. The message has the error
	// and what to do about it. It is also a reason of Machines.
	ReasonCordonFailed = "CordonFailed"
	// ReasonInvalidDrainRule means that a drain rule is invalid. The message has the rule and the error. It is also a reason of Machines.
	ReasonInvalidDrainRule = "InvalidDrainRule"

	// ReasonNodesSelected means that the selection is plausible.
	ReasonNodesSelected = "NodesSelected"
	// ReasonAllNodesSelected means that the nodeSelector selects all Nodes, so evicted Pods cannot be scheduled to another Node.
	ReasonAllNodesSelected = "AllNodesSelected"
	// ReasonAllControlPlaneNodesSelected means that the nodeSelector selects all control plane Nodes.
	ReasonAllControlPlaneNodesSelected = "AllControlPlaneNodesSelected"
	// ReasonTooManyNodesSelected means that the nodeSelector selects more Nodes than nodeStatuses can have. Those without an entry are
	// cordoned and their Pods are evicted, but Pods of DaemonSets and static Pods stay there, and no surge and no drain timeout applies.
	ReasonTooManyNodesSelected = "TooManyNodesSelected"
)

// Condition types of Nodes, with the names of KEP-5683. The controller sets them to True with the reason
// ReasonNodeMaintenance and removes them later. It does not change conditions with other reasons, because other actors own them.
const (
	// NodeMaintenancePlanned means that a NodeMaintenance in stage Idle selects the Node.
	NodeMaintenancePlanned = "MaintenancePlanned"
	// NodeMaintenanceInProgress means that a NodeMaintenance in stage Cordon or Drain selects the Node.
	NodeMaintenanceInProgress = "MaintenanceInProgress"
	// NodeDrainInProgress means that a NodeMaintenance in stage Drain selects the Node, which has Pods that must be drained.
	NodeDrainInProgress = "DrainInProgress"
	// NodeDrained means that all NodeMaintenances in stage Drain that select the Node have drained it.
	NodeDrained = "Drained"

	// ReasonNodeMaintenance means that a NodeMaintenance set the condition. The message names it.
	ReasonNodeMaintenance = "NodeMaintenance"
)

// StageStatus is the start time of a stage.
type StageStatus struct {
	// name of the stage.
	// +required
	Name NodeMaintenanceStage `json:"name,omitempty"`

	// startTimestamp is the time at which the stage started.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="startTimestamp must be a time as in RFC 3339, from 1970 to 9998"
	StartTimestamp metav1.Time `json:"startTimestamp,omitempty,omitzero"`
}

// NodeReference refers to a Node.
type NodeReference struct {
	// name of the Node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// DrainTarget describes Pods that may be evacuated from a Node now: Pods of one type that match one selector, up to a drain order and a
// priority.
type DrainTarget struct {
	// podType is the type of the Pods.
	// +required
	PodType PodType `json:"podType,omitempty"`

	// podPriority is the highest priority of the Pods.
	// +required
	PodPriority int32 `json:"podPriority"`

	// podSelector selects the Pods by their labels. If it is not set, all Pods are selected.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// order is the highest drain order of the Pods. podPriority limits only Pods with this drain order: Pods with a lower drain order are
	// targets whatever their priority. It can be negative. If it is not set, it is 0.
	// +optional
	Order *int32 `json:"order,omitempty"`
}

// BlockedPod is a Pod whose evacuation is blocked.
type BlockedPod struct {
	// pod is the namespace and name of the Pod: "namespace/name".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Pod string `json:"pod,omitempty"`

	// reason is the reason of the condition Evicting of the Pod's Evacuation, for programs. It is not set while the Pod waits for
	// something other than its eviction.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// why is what the Pod waits for, as a sentence.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Why string `json:"why,omitempty"`

	// since is the time since which the Pod has been waiting.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="since must be a time as in RFC 3339, from 1970 to 9998"
	Since *metav1.Time `json:"since,omitempty"`
}

// NodeMaintenanceNodeStatus is the progress on one Node.
type NodeMaintenanceNodeStatus struct {
	// nodeRef names the Node.
	// +required
	NodeRef NodeReference `json:"nodeRef,omitempty,omitzero"`

	// drainStartTime is the time at which the drain of the Node began, if the Node joined after the start of stage Drain. The drain timeout
	// of the Node counts from it. It is not set on the Node of a Machine.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="drainStartTime must be a time as in RFC 3339, from 1970 to 9998"
	DrainStartTime *metav1.Time `json:"drainStartTime,omitempty"`

	// drainTargetsIndex is the index of this Node's drain targets in status.drainTargetSets. It is set instead of drainTargets
	// when many Nodes are selected, to keep the object small.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DrainTargetsIndex *int32 `json:"drainTargetsIndex,omitempty"`

	// drainTargets are the Pods of the Node that may be evacuated now. They never move backward. If several NodeMaintenances select the
	// Node, a Pod is a target only if each of them allows it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=192
	DrainTargets []DrainTarget `json:"drainTargets,omitempty"`

	// drainMessage is the progress of the drain of the Node and what it waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	DrainMessage string `json:"drainMessage,omitempty"`

	// waiting is true while the drain of the Node waits for other Nodes because of maxParallelNodes.
	// +optional
	Waiting bool `json:"waiting,omitempty"`

	// drained is true if the Node has no live Pod that must be drained.
	// +optional
	Drained bool `json:"drained,omitempty"`

	// podsPendingEvacuation is the number of live Pods that must be drained and have no Evacuation yet.
	// +optional
	PodsPendingEvacuation int32 `json:"podsPendingEvacuation"`

	// podsEvacuating is the number of live Pods that have an Evacuation.
	// +optional
	PodsEvacuating int32 `json:"podsEvacuating"`

	// podsSkipped is the number of live Pods that stay on the Node.
	// +optional
	PodsSkipped int32 `json:"podsSkipped,omitempty"`

	// blocked lists up to five Pods whose evacuation is blocked, starting with the one that has been waiting the longest.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Blocked []BlockedPod `json:"blocked,omitempty"`
}

// ReplacementStatus records the evictions of Pods that one controller created on a Node after the Node was cordoned. The next
// evictions of such Pods back off.
type ReplacementStatus struct {
	// node is the name of the Node. In the last entry of a full list, node and controller are not set: this entry applies to all
	// controllers without an entry.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// controller is the kind, namespace and name of the Pods' controller: "Deployment default/web". For a Pod without a controller, it is
	// the kind, namespace and name of the Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Controller string `json:"controller,omitempty"`

	// evictions is the number of evictions that were made. Pods that are evicted at the same time count as one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Evictions int32 `json:"evictions"`

	// firstEvictionTime is the time from which on the first eviction was attempted.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="firstEvictionTime must be a time as in RFC 3339, from 1970 to 9998"
	FirstEvictionTime metav1.Time `json:"firstEvictionTime,omitempty,omitzero"`

	// evictionTime is the time from which on the last eviction was attempted. It is in the future while the backoff defers the eviction.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="evictionTime must be a time as in RFC 3339, from 1970 to 9998"
	EvictionTime metav1.Time `json:"evictionTime,omitempty,omitzero"`

	// newestPodUID is the UID of the newest of the Pods that are to be evicted at evictionTime. It is not set when this Pod has been evicted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	NewestPodUID string `json:"newestPodUID,omitempty"`

	// newestPodCreationTime is the creation time of the newest Pod. Older Pods are evicted with it, newer ones are its replacements.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="newestPodCreationTime must be a time as in RFC 3339, from 1970 to 9998"
	NewestPodCreationTime metav1.Time `json:"newestPodCreationTime,omitempty,omitzero"`
}

// DrainTimeoutStatus is what the manager has observed and done about the drain timeout.
type DrainTimeoutStatus struct {
	// deadline is the time at which the drain times out.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="deadline must be a time as in RFC 3339, from 1970 to 9998"
	Deadline metav1.Time `json:"deadline,omitempty,omitzero"`

	// observedTime is the time at which the manager first observed this deadline. The final eviction attempts are not made before.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="observedTime must be a time as in RFC 3339, from 1970 to 9998"
	ObservedTime metav1.Time `json:"observedTime,omitempty,omitzero"`

	// finalAttemptTime is the time since which the final eviction attempts of all remaining Pods are due.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="finalAttemptTime must be a time as in RFC 3339, from 1970 to 9998"
	FinalAttemptTime *metav1.Time `json:"finalAttemptTime,omitempty"`

	// finalAttemptEndTime is 30 s after finalAttemptTime, or the end of the grace periods of the Pods that terminate, if that is later. The
	// Machine waits until then, and at least 30 s and at most ten minutes and 30 s from when a manager has found the drain timeout to be
	// exceeded.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="finalAttemptEndTime must be a time as in RFC 3339, from 1970 to 9998"
	FinalAttemptEndTime *metav1.Time `json:"finalAttemptEndTime,omitempty"`
}

// DrainTargetSet is a list of drain targets that several Nodes share.
type DrainTargetSet struct {
	// drainTargets of the Nodes that refer to this set.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=192
	DrainTargets []DrainTarget `json:"drainTargets,omitempty"`
}

// NodeMaintenanceStatus is the observed progress of a maintenance.
type NodeMaintenanceStatus struct {
	// observedGeneration is the generation of the spec that the status reflects.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Cordoned, Drained and SelectionPlausible. When they apply, there are also Reconciling or Stalled, PodsRemaining,
	// FinalEvictionAttempt, MachineDeleted and RestoreFailed.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime >= timestamp('1970-01-01T00:00:00Z') && self.lastTransitionTime < timestamp('9999-01-01T00:00:00Z')",message="lastTransitionTime must be a time as in RFC 3339, from 1970 to 9998"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// stageStatuses has an entry for each stage that has started.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=4
	StageStatuses []StageStatus `json:"stageStatuses,omitempty"`

	// drainTimeout is the progress before the drain timeout. It is set while the drain has a timeout and its Pods are observed.
	// +optional
	DrainTimeout *DrainTimeoutStatus `json:"drainTimeout,omitempty"`

	// summary has the totals of all Nodes.
	// +optional
	Summary NodeMaintenanceSummary `json:"summary,omitempty,omitzero"`

	// drainTargetSets are the drain targets that the Nodes of a large maintenance share.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5000
	DrainTargetSets []DrainTargetSet `json:"drainTargetSets,omitempty"`

	// nodeStatuses has the progress of each selected Node, sorted by name. It has at most 5000 entries.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5000
	NodeStatuses []NodeMaintenanceNodeStatus `json:"nodeStatuses,omitempty"`

	// replacements lists the controllers that created Pods on a Node after the Node was cordoned. A controller is added when the first of
	// these Pods is evicted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Replacements []ReplacementStatus `json:"replacements,omitempty"`

	// outcome says what became of the Pods that the drain has evicted. It is set when the drain has ended.
	// +optional
	Outcome *DrainOutcome `json:"outcome,omitempty"`
}

// NodeMaintenanceSummary has the totals of all Nodes, and what blocks the drain.
type NodeMaintenanceSummary struct {
	// nodes is the number of selected Nodes.
	// +optional
	Nodes int32 `json:"nodes"`

	// drainedNodes is the number of selected Nodes without a live Pod that must be drained.
	// +optional
	DrainedNodes int32 `json:"drainedNodes"`

	// nextNodes names up to ten Nodes that wait because of maxParallelNodes, in the order in which they will be drained.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=253
	NextNodes []string `json:"nextNodes,omitempty"`

	// podsPending is the number of Pods that must be drained and have no Evacuation yet.
	// +optional
	PodsPending int32 `json:"podsPending"`

	// podsEvacuating is the number of Pods that have an Evacuation.
	// +optional
	PodsEvacuating int32 `json:"podsEvacuating"`

	// podsSkipped is the number of Pods that stay on their Nodes.
	// +optional
	PodsSkipped int32 `json:"podsSkipped"`

	// podsEvacuated is the number by which podsPending and podsEvacuating have decreased together since the drain began. A Pod that is
	// evacuated while another one is created may not be counted.
	// +optional
	PodsEvacuated int32 `json:"podsEvacuated,omitempty"`

	// lastProgressTime is when a Pod that must be drained last terminated or completed, or an evacuator last reported progress. Until then, it
	// is when the Pods were first observed. Reports are recorded at most every 30 s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="lastProgressTime must be a time as in RFC 3339, from 1970 to 9998"
	LastProgressTime *metav1.Time `json:"lastProgressTime,omitempty"`

	// progress is the number of drained Nodes and of selected Nodes: "3/10".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Progress string `json:"progress,omitempty"`

	// blocking is what the drain has been waiting for the longest.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Blocking string `json:"blocking,omitempty"`

	// truncated is the number of Nodes that nodeStatuses describes in part, to keep the object small. Their messages and blocked lists
	// are truncated, or, beyond 5000 Nodes, they have no entry.
	// +optional
	Truncated int32 `json:"truncated,omitempty"`
}
