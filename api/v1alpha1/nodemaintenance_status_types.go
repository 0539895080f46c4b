package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions of a NodeMaintenance and their reasons.
const (
	// NodeMaintenanceDrained is True while no live Pod that must go is on any selected Node.
	NodeMaintenanceDrained = "Drained"
	// NodeMaintenanceCordoned is True while every selected Node is unschedulable.
	NodeMaintenanceCordoned = "Cordoned"
	// NodeMaintenanceSelectionPlausible is False, as a warning that holds nothing up, while the nodeSelector selects what is
	// rarely meant: every Node, every control plane Node, or no Node.
	NodeMaintenanceSelectionPlausible = "SelectionPlausible"

	// NodeMaintenancePodsRemaining is True while Pods that the rules have drained are left on the Nodes, since nobody could keep
	// them away. They hold nothing back. Its message names them.
	NodeMaintenancePodsRemaining = "PodsRemaining"

	// NodeMaintenanceFinalEvictionAttempt tells, when the time of the drain is nearly up, whether every Pod that must go has been asked to,
	// those whose step hasn't come as well. The Machine isn't released before it is True, or a moment is over.
	NodeMaintenanceFinalEvictionAttempt = "FinalEvictionAttempt"

	ReasonAllPodsAttempted = "AllPodsAttempted"
	ReasonAttemptingPods   = "AttemptingPods"

	// NodeMaintenanceMachineDeleted is True while the Node is there although the Machine that the maintenance serves is gone. It goes
	// on as it is, until somebody says what becomes of the Node.
	NodeMaintenanceMachineDeleted = "MachineDeleted"

	ReasonNodeExists = "NodeExists"

	// ReasonDaemonSetToleratesMaintenance: a DaemonSet tolerates the taint NoDaemonSetPodsTaint, so it would replace its Pods.
	ReasonDaemonSetToleratesMaintenance = "DaemonSetToleratesMaintenance"

	ReasonDrained         = "Drained"
	ReasonDraining        = "Draining"
	ReasonNotDraining     = "NotDraining"
	ReasonNoNodesSelected = "NoNodesSelected"
	ReasonPodsNotObserved = "PodsNotObserved"
	ReasonCordoned        = "Cordoned"
	ReasonCordoning       = "Cordoning"
	ReasonNotCordoned     = "NotCordoned"
	// ReasonCordonFailed: the API server refuses to cordon some of the Nodes. The message has the error and what to do about it.
	ReasonCordonFailed     = "CordonFailed"
	ReasonInvalidDrainRule = "InvalidDrainRule"

	ReasonNodesSelected                = "NodesSelected"
	ReasonAllNodesSelected             = "AllNodesSelected"
	ReasonAllControlPlaneNodesSelected = "AllControlPlaneNodesSelected"
)

// Conditions of the Nodes under maintenance, named as Kubernetes 1.37 does (KEP-5683). We set them to True, with the reason
// ReasonNodeMaintenance, and remove them; those of others, with other reasons, are left to them.
const (
	// NodeMaintenancePlanned: a NodeMaintenance in stage Idle selects the Node.
	NodeMaintenancePlanned = "MaintenancePlanned"
	// NodeMaintenanceInProgress: a NodeMaintenance in stage Cordon or Drain selects it.
	NodeMaintenanceInProgress = "MaintenanceInProgress"
	// NodeDrainInProgress: one in stage Drain does, and Pods are left that must go.
	NodeDrainInProgress = "DrainInProgress"
	// NodeDrained: those in stage Drain have no Pod left on the Node that must go.
	NodeDrained = "Drained"

	ReasonNodeMaintenance = "NodeMaintenance"
)

// StageStatus says when a stage has started.
type StageStatus struct {
	// name of the stage.
	// +required
	Name NodeMaintenanceStage `json:"name,omitempty"`

	// startTimestamp is when the stage has started.
	// +required
	StartTimestamp metav1.Time `json:"startTimestamp,omitempty,omitzero"`
}

// NodeReference names a Node.
type NodeReference struct {
	// name of the Node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// DrainTarget says how far the drain of a Node has come: Pods of one type, with one selector, up to a priority (and order).
type DrainTarget struct {
	// podType of the Pods that are targeted.
	// +required
	PodType PodType `json:"podType,omitempty"`

	// podPriority: Pods up to this priority are targeted.
	// +required
	PodPriority int32 `json:"podPriority"`

	// podSelector of the Pods that are targeted. Absent: all.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// order and podPriority are read together: Pods of lower orders are targeted whatever their priority, and those of this
	// order up to podPriority. It may be negative. Absent: 0.
	// +optional
	Order *int32 `json:"order,omitempty"`
}

// BlockedPod is a Pod that can't go yet.
type BlockedPod struct {
	// pod is "namespace/name".
	// +required
	// +kubebuilder:validation:MaxLength=512
	Pod string `json:"pod,omitempty"`

	// reason is the reason of the condition Evicting of the Pod's Evacuation, for programs. It is absent while the Pod waits for
	// something else than its eviction.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// why says what the Pod waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Why string `json:"why,omitempty"`

	// since when it waits.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// NodeMaintenanceNodeStatus is the progress on one Node.
type NodeMaintenanceNodeStatus struct {
	// nodeRef names the Node.
	// +required
	NodeRef NodeReference `json:"nodeRef,omitempty,omitzero"`

	// drainTargetsIndex is the position in status.drainTargetSets of the targets that this Node has. It is used instead of
	// drainTargets when many Nodes are selected, to keep the object small.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DrainTargetsIndex *int32 `json:"drainTargetsIndex,omitempty"`

	// drainTargets says which Pods of the Node are to go now. It never backtracks. When several maintenances select the Node,
	// the least powerful one wins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=192
	DrainTargets []DrainTarget `json:"drainTargets,omitempty"`

	// drainMessage says how the drain of the Node goes, and what it waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	DrainMessage string `json:"drainMessage,omitempty"`

	// drained says that no live Pod that must go is left on the Node.
	// +optional
	Drained bool `json:"drained,omitempty"`

	// podsPendingEvacuation counts the live Pods that must go and have no Evacuation yet.
	// +optional
	PodsPendingEvacuation int32 `json:"podsPendingEvacuation"`

	// podsEvacuating counts the live Pods that have an Evacuation.
	// +optional
	PodsEvacuating int32 `json:"podsEvacuating"`

	// podsSkipped counts the live Pods that stay.
	// +optional
	PodsSkipped int32 `json:"podsSkipped,omitempty"`

	// blocked lists up to five Pods that can't go yet, those that wait longest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Blocked []BlockedPod `json:"blocked,omitempty"`
}

// ReplacementStatus records the evictions of Pods that one controller created on a Node after the Node was cordoned. The next
// evictions of such Pods back off.
type ReplacementStatus struct {
	// node is the name of the Node. It is absent, as is controller, in the last entry of a full list: that entry counts for all
	// controllers without an entry of their own.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// controller is the kind, namespace and name of the Pods' controller: "Deployment default/web". For Pods without a controller it
	// is that of the Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Controller string `json:"controller,omitempty"`

	// evictions is the number of evictions. Pods that are evicted at the same time count as one.
	// +required
	// +kubebuilder:validation:Minimum=1
	Evictions int32 `json:"evictions,omitempty"`

	// firstEvictionTime is the time of the first eviction.
	// +required
	FirstEvictionTime metav1.Time `json:"firstEvictionTime,omitempty,omitzero"`

	// evictionTime is the time of the last eviction. It is in the future while the eviction is waited for.
	// +required
	EvictionTime metav1.Time `json:"evictionTime,omitempty,omitzero"`

	// newestPodUID is the UID of the newest of the Pods that are evicted at evictionTime.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	NewestPodUID string `json:"newestPodUID,omitempty"`

	// newestPodCreationTime is the creation time of that Pod. Older Pods are evicted with it, newer ones are its replacements.
	// +required
	NewestPodCreationTime metav1.Time `json:"newestPodCreationTime,omitempty,omitzero"`
}

// DrainTargetSet is a list of drain targets that several Nodes share.
type DrainTargetSet struct {
	// drainTargets of the Nodes that refer to this set.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=192
	DrainTargets []DrainTarget `json:"drainTargets,omitempty"`
}

// NodeMaintenanceStatus is the observed progress of a maintenance.
type NodeMaintenanceStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Cordoned, Drained, SelectionPlausible.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// stageStatuses has an entry for each stage that has started.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=4
	StageStatuses []StageStatus `json:"stageStatuses,omitempty"`

	// summary counts over all Nodes.
	// +optional
	Summary NodeMaintenanceSummary `json:"summary,omitempty,omitzero"`

	// drainTargetSets holds the drain targets that the Nodes of a large maintenance share.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5000
	DrainTargetSets []DrainTargetSet `json:"drainTargetSets,omitempty"`

	// nodeStatuses has the progress on each selected Node, by name; of more than 5000, the first 5000.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5000
	NodeStatuses []NodeMaintenanceNodeStatus `json:"nodeStatuses,omitempty"`

	// replacements lists the controllers that created Pods on a Node after the Node was cordoned, once one of these Pods was evicted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Replacements []ReplacementStatus `json:"replacements,omitempty"`
}

// NodeMaintenanceSummary answers "how far, what blocks" at a glance.
type NodeMaintenanceSummary struct {
	// nodes is how many Nodes are selected.
	// +optional
	Nodes int32 `json:"nodes"`

	// drainedNodes is how many of them have no live Pod left that must go.
	// +optional
	DrainedNodes int32 `json:"drainedNodes"`

	// podsPending is how many Pods wait for an Evacuation.
	// +optional
	PodsPending int32 `json:"podsPending"`

	// podsEvacuating is how many Pods have one.
	// +optional
	PodsEvacuating int32 `json:"podsEvacuating"`

	// podsSkipped is how many Pods stay.
	// +optional
	PodsSkipped int32 `json:"podsSkipped"`

	// progress is "drained/all" Nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Progress string `json:"progress,omitempty"`

	// blocking is the drain message, or blocker, that has lasted longest.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Blocking string `json:"blocking,omitempty"`

	// truncated says how many Nodes are told of in part to keep the object small: their messages or blocked lists are cut, or,
	// beyond 5000 Nodes, they are left out of nodeStatuses.
	// +optional
	Truncated int32 `json:"truncated,omitempty"`
}
