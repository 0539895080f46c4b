package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeMaintenanceStage is what is asked of a NodeMaintenance. Stages only move forward.
// +kubebuilder:validation:Enum=Idle;Cordon;Drain;Complete
type NodeMaintenanceStage string

const (
	// StageIdle announces a maintenance: no Node and no Pod is touched.
	StageIdle NodeMaintenanceStage = "Idle"
	// StageCordon keeps the selected Nodes unschedulable.
	StageCordon NodeMaintenanceStage = "Cordon"
	// StageDrain keeps the selected Nodes unschedulable and has their Pods evacuated, step by step.
	StageDrain NodeMaintenanceStage = "Drain"
	// StageComplete ends the maintenance: Nodes are left as they were found, Evacuations are withdrawn.
	StageComplete NodeMaintenanceStage = "Complete"
)

// PodType sorts Pods by what ties them to their Node.
// +kubebuilder:validation:Enum=Default;DaemonSet;Static
type PodType string

const (
	// PodTypeDefault is every Pod that is neither of the others.
	PodTypeDefault PodType = "Default"
	// PodTypeDaemonSet is a Pod controlled by a DaemonSet that exists.
	PodTypeDaemonSet PodType = "DaemonSet"
	// PodTypeStatic is the mirror of a static Pod.
	PodTypeStatic PodType = "Static"
)

// DrainBehavior says what happens to a Pod that a drain rule matches.
// +kubebuilder:validation:Enum=Drain;Skip;WaitCompleted
type DrainBehavior string

const (
	// DrainBehaviorDrain has the Pod evacuated when its turn comes.
	DrainBehaviorDrain DrainBehavior = "Drain"
	// DrainBehaviorSkip leaves the Pod alone; it holds nothing back.
	DrainBehaviorSkip DrainBehavior = "Skip"
	// DrainBehaviorWaitCompleted leaves the Pod alone and waits until it has finished by itself.
	DrainBehaviorWaitCompleted DrainBehavior = "WaitCompleted"
)

// DrainPlanEntry is one step of a drain plan: the Pods of one type up to a priority.
type DrainPlanEntry struct {
	// podType selects Pods by their type.
	// +optional
	// +default="Default"
	PodType PodType `json:"podType,omitempty"`

	// podPriority selects the Pods whose priority is lower or equal.
	// +required
	PodPriority int32 `json:"podPriority"`

	// podSelector selects Pods by their labels, so that some Pods of a priority go before the others.
	// Absent: all Pods. An empty selector is refused.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// DrainRulePodSelector selects Pods; all its fields must match.
// +kubebuilder:validation:MinProperties=1
type DrainRulePodSelector struct {
	// podType matches Pods of this type. Absent: any.
	// +optional
	PodType PodType `json:"podType,omitempty"`

	// drainLabel matches Pods whose label cluster.x-k8s.io/drain asks for this behavior, in any of the spellings that
	// Cluster API accepts (skip; wait-completed, waitcompleted; upper or lower case), which no label selector can say.
	// +optional
	// +kubebuilder:validation:Enum=Skip;WaitCompleted
	DrainLabel DrainBehavior `json:"drainLabel,omitempty"`

	// selector matches Pods by their labels. Absent or empty: any.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaceSelector matches Pods by the labels of their Namespace. Absent or empty: any.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// DrainRule decides what happens to the Pods that it matches.
// +kubebuilder:validation:XValidation:rule="!has(self.order) || self.behavior == 'Drain'",message="order goes with behavior Drain alone"
type DrainRule struct {
	// name tells people where the rule comes from, for example machine-drain-rule/portworx.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	Name string `json:"name,omitempty"`

	// behavior is what happens to the Pods that the rule matches.
	// +required
	Behavior DrainBehavior `json:"behavior,omitempty"`

	// order sorts Pods that drain: those of a higher order go after those of a lower one are gone. Default 0.
	// +optional
	Order *int32 `json:"order,omitempty"`

	// pods lists what the rule matches; one match is enough. Empty: all Pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Pods []DrainRulePodSelector `json:"pods,omitempty"`
}

// SurgePolicy says when room is made for a Pod before it goes.
// +kubebuilder:validation:Enum=Never;IfSingleReplica;Always
type SurgePolicy string

const (
	// SurgeNever evicts without making room first.
	SurgeNever SurgePolicy = "Never"
	// SurgeIfSingleReplica makes room for Deployments that declare one replica.
	SurgeIfSingleReplica SurgePolicy = "IfSingleReplica"
	// SurgeAlways makes room for every Deployment, up to its maxSurge at a time.
	SurgeAlways SurgePolicy = "Always"
)

// EvacuatorsPolicy says which evacuators may take over Pods.
// +kubebuilder:validation:Enum=Any;BuiltIn
type EvacuatorsPolicy string

const (
	// EvacuatorsAny honors the evacuators that Pods are annotated with.
	EvacuatorsAny EvacuatorsPolicy = "Any"
	// EvacuatorsBuiltIn ignores annotated evacuators, so that a tenant can't hold a Node with silent ones.
	EvacuatorsBuiltIn EvacuatorsPolicy = "BuiltIn"
)

// UnhealthyBudgetPolicy says what happens to unready Pods whose own budget can never have room.
// +kubebuilder:validation:Enum=Respect;Override
type UnhealthyBudgetPolicy string

const (
	// UnhealthyBudgetRespect waits, and names the Pods that block their own budget.
	UnhealthyBudgetRespect UnhealthyBudgetPolicy = "Respect"
	// UnhealthyBudgetOverride deletes Pods that are not ready when their own budget can never have room.
	UnhealthyBudgetOverride UnhealthyBudgetPolicy = "Override"
)

// OnTimeoutPolicy says what happens to Pods that are left when the drain's time is up.
// +kubebuilder:validation:Enum=Release;Delete
type OnTimeoutPolicy string

const (
	// OnTimeoutRelease leaves them: the Machine is deleted with them.
	OnTimeoutRelease OnTimeoutPolicy = "Release"
	// OnTimeoutDelete deletes them, early enough for each one's grace period.
	OnTimeoutDelete OnTimeoutPolicy = "Delete"
)

// EvacuationPolicy is how the Pods of a maintenance are evacuated; what a MachineDrainPolicy decided, compiled in.
type EvacuationPolicy struct {
	// progressDeadlineSeconds is how long an evacuator may go without reporting progress.
	// +optional
	// +default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=21600
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`

	// surge says when room is made for the Pods of a Deployment before they go.
	// +optional
	// +default="Never"
	Surge SurgePolicy `json:"surge,omitempty"`

	// evacuators says which evacuators may take over Pods.
	// +optional
	// +default="Any"
	Evacuators EvacuatorsPolicy `json:"evacuators,omitempty"`

	// unhealthyBudget says what happens to unready Pods whose own budget can never have room.
	// +optional
	// +default="Respect"
	UnhealthyBudget UnhealthyBudgetPolicy `json:"unhealthyBudget,omitempty"`

	// drainTimeoutSeconds is the time that the drain has, counted from the start of the Drain stage. Absent or 0: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DrainTimeoutSeconds *int32 `json:"drainTimeoutSeconds,omitempty"`

	// onTimeout says what happens to Pods that are left when that time is up.
	// +optional
	// +default="Release"
	OnTimeout OnTimeoutPolicy `json:"onTimeout,omitempty"`
}

// NodeMaintenanceSpec is the intent to remove Pods from Nodes, so that the Nodes can be worked on.
//
// The rules for drainPlan are R2 and R3 of the design: see docs/design.md, "Drain plans".
// +kubebuilder:validation:XValidation:rule="self.nodeSelector == oldSelf.nodeSelector || oldSelf.stage == 'Idle'",message="nodeSelector is immutable once the stage has left Idle"
// +kubebuilder:validation:XValidation:rule="has(self.drainPlan) == has(oldSelf.drainPlan)",message="drainPlan is immutable"
type NodeMaintenanceSpec struct {
	// nodeSelector selects the Nodes to maintain. It can change only while the stage is Idle.
	// +required
	NodeSelector NodeSelector `json:"nodeSelector,omitempty,omitzero"`

	// stage is what to do with the Nodes. Stages only move forward: Idle, Cordon, Drain, Complete; any may be left out.
	// +optional
	// +default="Idle"
	// +kubebuilder:validation:XValidation:rule="oldSelf == self || oldSelf == 'Idle' || (oldSelf == 'Cordon' && self != 'Idle') || (oldSelf == 'Drain' && self == 'Complete')",message="stage only moves forward: Idle, Cordon, Drain, Complete"
	Stage NodeMaintenanceStage `json:"stage,omitempty"`

	// drainPlan is the order in which Pods go: by type (Default, then DaemonSet, then Static), then by priority, entries with
	// a selector before those without. The twelve entries that this field defaults to are always in effect: where the list
	// leaves one out, it is added in its sorted position wherever the plan is used. Immutable.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:default={{podType:Default,podPriority:1000000000},{podType:Default,podPriority:2000000000},{podType:Default,podPriority:2000001000},{podType:Default,podPriority:2147483647},{podType:DaemonSet,podPriority:1000000000},{podType:DaemonSet,podPriority:2000000000},{podType:DaemonSet,podPriority:2000001000},{podType:DaemonSet,podPriority:2147483647},{podType:Static,podPriority:1000000000},{podType:Static,podPriority:2000000000},{podType:Static,podPriority:2000001000},{podType:Static,podPriority:2147483647}}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="drainPlan is immutable"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.podSelector) || (has(e.podSelector.matchLabels) && size(e.podSelector.matchLabels) > 0) || (has(e.podSelector.matchExpressions) && size(e.podSelector.matchExpressions) > 0))",message="an empty podSelector is refused: leave it out to select all Pods"
	// +kubebuilder:validation:XValidation:rule="self.all(e, self.exists_one(x, x == e))",message="drainPlan has a duplicate entry"
	// +kubebuilder:validation:XValidation:rule="self.map(e, e.podType == 'Static' ? 2 : e.podType == 'DaemonSet' ? 1 : 0).isSorted()",message="drainPlan is out of order: Default, then DaemonSet, then Static"
	// +kubebuilder:validation:XValidation:rule="self.filter(e, e.podType == 'Default').map(e, e.podPriority).isSorted() && self.filter(e, e.podType == 'DaemonSet').map(e, e.podPriority).isSorted() && self.filter(e, e.podType == 'Static').map(e, e.podPriority).isSorted()",message="drainPlan is out of order: podPriority ascends within a podType"
	// +kubebuilder:validation:XValidation:rule="['Default', 'DaemonSet', 'Static'].all(t, self.filter(e, e.podType == t).map(e, e.podPriority * 2 + (has(e.podSelector) ? 0 : 1)).isSorted())",message="drainPlan is out of order: at equal podType and podPriority, entries with a podSelector come first"
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty"`

	// drainRules decide about each Pod; the first one that matches counts. A Pod that none matches drains at order 0.
	// They may change at any time.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	DrainRules []DrainRule `json:"drainRules,omitempty"`

	// evacuation is how Pods are evacuated.
	// +optional
	// +kubebuilder:default={}
	Evacuation EvacuationPolicy `json:"evacuation,omitempty,omitzero"`

	// reason tells people why the Nodes are maintained.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
}

// Conditions of a NodeMaintenance and their reasons.
const (
	// NodeMaintenanceDrained is True while no live Pod that must go is on any selected Node.
	NodeMaintenanceDrained = "Drained"
	// NodeMaintenanceCordoned is True while every selected Node is unschedulable.
	NodeMaintenanceCordoned = "Cordoned"
	// NodeMaintenanceSelectionPlausible is False, as a warning that holds nothing up, while the nodeSelector selects what is
	// rarely meant: every Node, every control plane Node, or no Node.
	NodeMaintenanceSelectionPlausible = "SelectionPlausible"

	// NodeMaintenancePodsLeft is True while Pods that the rules have drained are left on the Nodes, since nobody could keep
	// them away. They hold nothing back. Its message names them.
	NodeMaintenancePodsLeft = "PodsLeft"

	// ReasonDaemonSetToleratesMaintenance: a DaemonSet tolerates the taint NoDaemonSetPodsTaint, so it would replace its Pods.
	ReasonDaemonSetToleratesMaintenance = "DaemonSetToleratesMaintenance"

	ReasonDrained          = "Drained"
	ReasonDraining         = "Draining"
	ReasonNotDraining      = "NotDraining"
	ReasonNoNodesSelected  = "NoNodesSelected"
	ReasonPodsNotObserved  = "PodsNotObserved"
	ReasonCordoned         = "Cordoned"
	ReasonCordoning        = "Cordoning"
	ReasonNotCordoned      = "NotCordoned"
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

// NodeMaintenance asks for Nodes to be cordoned and drained, declaratively. See KEP-4212.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodemaintenances,scope=Cluster,shortName=nm,categories=cluster-api
// +kubebuilder:printcolumn:name="Stage",type="string",JSONPath=".spec.stage",description="What is asked for"
// +kubebuilder:printcolumn:name="Drained",type="string",JSONPath=".status.conditions[?(@.type=='Drained')].status",description="No Pod that must go is left"
// +kubebuilder:printcolumn:name="Nodes",type="string",JSONPath=".status.summary.progress",description="Drained Nodes of all selected ones"
// +kubebuilder:printcolumn:name="Pending",type="integer",JSONPath=".status.summary.podsPending",description="Pods that wait for their turn"
// +kubebuilder:printcolumn:name="Evacuating",type="integer",JSONPath=".status.summary.podsEvacuating",description="Pods that are being evacuated"
// +kubebuilder:printcolumn:name="Skipped",type="integer",JSONPath=".status.summary.podsSkipped",description="Pods that stay",priority=1
// +kubebuilder:printcolumn:name="Blocking",type="string",JSONPath=".status.summary.blocking",description="What the drain waits for longest"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".spec.reason",description="Why the Nodes are maintained",priority=1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type NodeMaintenance struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the intent.
	// +required
	Spec NodeMaintenanceSpec `json:"spec,omitempty,omitzero"`

	// status is what was observed.
	// +optional
	Status NodeMaintenanceStatus `json:"status,omitempty,omitzero"`
}

// NodeMaintenanceList is a list of NodeMaintenances.
// +kubebuilder:object:root=true
type NodeMaintenanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeMaintenance `json:"items"`
}

// GetConditions returns the conditions.
func (m *NodeMaintenance) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions.
func (m *NodeMaintenance) SetConditions(conditions []metav1.Condition) {
	m.Status.Conditions = conditions
}
