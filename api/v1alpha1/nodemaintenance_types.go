package v1alpha1

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeMaintenanceStage is how far a NodeMaintenance goes. Stages only move forward.
// +kubebuilder:validation:Enum=Idle;Cordon;Drain;Complete
type NodeMaintenanceStage string

const (
	// StageIdle announces a maintenance and changes no Node and no Pod.
	StageIdle NodeMaintenanceStage = "Idle"
	// StageCordon keeps the selected Nodes unschedulable.
	StageCordon NodeMaintenanceStage = "Cordon"
	// StageDrain keeps the selected Nodes unschedulable and evacuates their Pods step by step.
	StageDrain NodeMaintenanceStage = "Drain"
	// StageComplete ends the maintenance: it withdraws from the Evacuations and restores the recorded state of the Nodes.
	StageComplete NodeMaintenanceStage = "Complete"
)

// PodType is the type of a Pod in a drain plan. It depends on what controls the Pod.
// +kubebuilder:validation:Enum=Default;DaemonSet;Static
type PodType string

const (
	// PodTypeDefault is every Pod that has none of the other types.
	PodTypeDefault PodType = "Default"
	// PodTypeDaemonSet is a Pod whose controller is an existing DaemonSet.
	PodTypeDaemonSet PodType = "DaemonSet"
	// PodTypeStatic is the mirror Pod of a static Pod.
	PodTypeStatic PodType = "Static"
)

// DrainBehavior says what happens to a Pod that a drain rule matches.
// +kubebuilder:validation:Enum=Drain;Skip;WaitCompleted
type DrainBehavior string

const (
	// DrainBehaviorDrain evacuates the Pod at its step of the drain.
	DrainBehaviorDrain DrainBehavior = "Drain"
	// DrainBehaviorSkip leaves the Pod on the Node. The drain does not wait for it.
	DrainBehaviorSkip DrainBehavior = "Skip"
	// DrainBehaviorWaitCompleted does not evict the Pod. The drain waits until the Pod completes.
	DrainBehaviorWaitCompleted DrainBehavior = "WaitCompleted"
)

// DrainLabelPolicy says whether a NodeMaintenance honors the label cluster.x-k8s.io/drain of Pods.
// +kubebuilder:validation:Enum=Honor;Ignore
type DrainLabelPolicy string

const (
	// DrainLabelPolicyHonor applies the behavior that the label requests.
	DrainLabelPolicyHonor DrainLabelPolicy = "Honor"
	// DrainLabelPolicyIgnore ignores the label, except where a drain rule selects it.
	DrainLabelPolicyIgnore DrainLabelPolicy = "Ignore"
)

// DrainPlanDefaults says which entries complete a drain plan, so that every Pod has a step.
// +kubebuilder:validation:Enum=PriorityTiers;None
type DrainPlanDefaults string

const (
	// DrainPlanDefaultsPriorityTiers completes a drain plan with KEP-4212's twelve entries: four priorities for each Pod type.
	DrainPlanDefaultsPriorityTiers DrainPlanDefaults = "PriorityTiers"
	// DrainPlanDefaultsNone completes a drain plan with one entry for each Pod type, which selects the Pods that no other entry
	// selects, whatever their priority.
	DrainPlanDefaultsNone DrainPlanDefaults = "None"
)

// DrainPlanEntry is one step of a drain plan: the Pods of one type up to a priority.
type DrainPlanEntry struct {
	// podType selects Pods by their type.
	// +optional
	// +default="Default"
	PodType PodType `json:"podType,omitempty"`

	// podPriority selects the Pods whose priority is lower than or equal to this value.
	// +required
	PodPriority int32 `json:"podPriority"`

	// podSelector selects Pods by their labels, to evacuate them before other Pods of the same priority.
	// If it is not set, all Pods are selected. An empty selector is rejected.
	// +optional
	PodSelector *LabelSelector `json:"podSelector,omitempty"`
}

// DrainRulePodSelector selects the Pods that match all of its fields.
// +kubebuilder:validation:MinProperties=1
type DrainRulePodSelector struct {
	// podType selects Pods of this type. If it is not set, Pods of all types are selected.
	// +optional
	PodType PodType `json:"podType,omitempty"`

	// drainLabel selects Pods whose label cluster.x-k8s.io/drain requests this behavior, in any of the spellings that Cluster API
	// accepts: skip, wait-completed and waitcompleted, in upper or lower case. A label selector cannot express this.
	// +optional
	// +kubebuilder:validation:Enum=Skip;WaitCompleted
	DrainLabel DrainBehavior `json:"drainLabel,omitempty"`

	// selector selects Pods by their labels. If it is not set or empty, all Pods are selected.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaceSelector selects Pods by the labels of their Namespace. If it is not set or empty, Pods in all Namespaces are selected.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// DrainRule says what happens to the Pods that it selects.
// +kubebuilder:validation:XValidation:rule="!has(self.order) || self.behavior == 'Drain'",message="order requires behavior Drain"
type DrainRule struct {
	// name identifies the origin of the rule for people, for example machine-drain-rule/portworx.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	Name string `json:"name,omitempty"`

	// behavior is what happens to the Pods that the rule selects.
	// +required
	Behavior DrainBehavior `json:"behavior,omitempty"`

	// order is the drain order of the Pods. Pods with a higher drain order are evacuated after all Pods with a lower drain order have
	// terminated. If it is not set, the drain order is 0.
	// +optional
	Order *int32 `json:"order,omitempty"`

	// pods selects the Pods to which the rule applies: those that match at least one entry. If it is empty, the rule applies to all Pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Pods []DrainRulePodSelector `json:"pods,omitempty"`
}

// WaitingNodesPolicy says what happens to the Nodes that wait because of maxParallelNodes or maxParallelDrains.
// +kubebuilder:validation:Enum=Cordon;Schedulable
type WaitingNodesPolicy string

const (
	// WaitingNodesCordon cordons all of these Nodes at once, so that no evicted Pod is scheduled to a Node that is drained later.
	WaitingNodesCordon WaitingNodesPolicy = "Cordon"
	// WaitingNodesSchedulable cordons a Node when it starts to be drained, so that the other Nodes can take its Pods.
	WaitingNodesSchedulable WaitingNodesPolicy = "Schedulable"
)

// NodeMaintenanceSpec is the intent to remove Pods from Nodes, so that the Nodes can be maintained or removed.
//
// The validation of drainPlan is requirements R2 and R3: see docs/design.md, "Drain plans".
// +kubebuilder:validation:XValidation:rule="self.nodeSelector == oldSelf.nodeSelector || oldSelf.stage == 'Idle'",message="nodeSelector is immutable after stage Idle"
// +kubebuilder:validation:XValidation:rule="!has(self.maxParallelNodes) || !has(self.evacuation) || !has(self.evacuation.drainTimeoutSeconds)",message="maxParallelNodes and evacuation.drainTimeoutSeconds exclude each other, because the timeout starts with stage Drain and not with the drain of each Node"
// +kubebuilder:validation:XValidation:rule="has(self.maxParallelNodes) || !has(self.waitingNodes)",message="waitingNodes requires maxParallelNodes"
// +kubebuilder:validation:XValidation:rule="has(self.drainPlan) == has(oldSelf.drainPlan)",message="drainPlan is immutable"
// +kubebuilder:validation:XValidation:rule="self.drainPlanDefaults != 'None' || size(self.drainPlan) != 12 || !self.drainPlan.all(e, !has(e.podSelector) && e.podPriority in [1000000000, 2000000000, 2000001000, 2147483647])",message="drainPlanDefaults None requires a drainPlan, because drainPlan defaults to the entries of PriorityTiers"
type NodeMaintenanceSpec struct {
	// nodeSelector selects the Nodes to maintain. It is immutable after stage Idle.
	// +required
	NodeSelector NodeSelector `json:"nodeSelector,omitempty,omitzero"`

	// stage is what to do with the Nodes. Stages only move forward: Idle, Cordon, Drain, Complete. Each of them can be left out.
	// +optional
	// +default="Idle"
	// +kubebuilder:validation:XValidation:rule="oldSelf == self || oldSelf == 'Idle' || (oldSelf == 'Cordon' && self != 'Idle') || (oldSelf == 'Drain' && self == 'Complete')",message="stage only moves forward: Idle, Cordon, Drain, Complete"
	Stage NodeMaintenanceStage `json:"stage,omitempty"`

	// maxParallelNodes is how many of the selected Nodes are drained at the same time: a number, or a percentage of the selected Nodes,
	// rounded down, but at least one. If it is not set, all of them are. Nodes start in the order of their names and count until they are
	// drained. A Node that another NodeMaintenance without a limit drains does not wait, and counts. It can be changed at any time: a
	// lower limit does not pause the drain of a Node.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 2147483647 : self.matches('^([1-9][0-9]?|100)%$')",message="maxParallelNodes must be from 1 to 2147483647, or a percentage from 1% to 100%"
	MaxParallelNodes *intstr.IntOrString `json:"maxParallelNodes,omitempty"`

	// waitingNodes says what happens in stage Drain to the Nodes that wait because of maxParallelNodes. If it is not set, they are
	// cordoned. It can be changed at any time: a Node that is cordoned stays so.
	// +optional
	WaitingNodes WaitingNodesPolicy `json:"waitingNodes,omitempty"`

	// drainPlan is the order in which Pods are evacuated. Entries must be sorted by podType (Default, then DaemonSet, then Static),
	// then by ascending podPriority. At equal podPriority, entries with a podSelector come first. The controller evaluates the plan
	// together with the entries that drainPlanDefaults adds, each in its sorted position. Immutable.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:default={{podType:Default,podPriority:1000000000},{podType:Default,podPriority:2000000000},{podType:Default,podPriority:2000001000},{podType:Default,podPriority:2147483647},{podType:DaemonSet,podPriority:1000000000},{podType:DaemonSet,podPriority:2000000000},{podType:DaemonSet,podPriority:2000001000},{podType:DaemonSet,podPriority:2147483647},{podType:Static,podPriority:1000000000},{podType:Static,podPriority:2000000000},{podType:Static,podPriority:2000001000},{podType:Static,podPriority:2147483647}}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="drainPlan is immutable"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.podSelector) || (has(e.podSelector.matchLabels) && size(e.podSelector.matchLabels) > 0) || (has(e.podSelector.matchExpressions) && size(e.podSelector.matchExpressions) > 0))",message="podSelector must not be empty: omit it to select all Pods"
	// +kubebuilder:validation:XValidation:rule="self.all(e, self.exists_one(x, x == e))",message="drainPlan has a duplicate entry"
	// +kubebuilder:validation:XValidation:rule="self.map(e, e.podType == 'Static' ? 2 : e.podType == 'DaemonSet' ? 1 : 0).isSorted()",message="drainPlan is out of order: Default, then DaemonSet, then Static"
	// +kubebuilder:validation:XValidation:rule="self.filter(e, e.podType == 'Default').map(e, e.podPriority).isSorted() && self.filter(e, e.podType == 'DaemonSet').map(e, e.podPriority).isSorted() && self.filter(e, e.podType == 'Static').map(e, e.podPriority).isSorted()",message="drainPlan is out of order: podPriority ascends within a podType"
	// +kubebuilder:validation:XValidation:rule="['Default', 'DaemonSet', 'Static'].all(t, self.filter(e, e.podType == t).map(e, e.podPriority * 2 + (has(e.podSelector) ? 0 : 1)).isSorted())",message="drainPlan is out of order: at equal podType and podPriority, entries with a podSelector come first"
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty"`

	// drainPlanDefaults says which entries complete the drainPlan. PriorityTiers adds the twelve entries that drainPlan defaults to,
	// so that critical Pods are evacuated after all others. None adds one entry for each Pod type, so that the Pods of a type that no
	// other entry selects are evacuated together, whatever their priority. None requires a drainPlan. Immutable.
	// +optional
	// +default="PriorityTiers"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="drainPlanDefaults is immutable"
	DrainPlanDefaults DrainPlanDefaults `json:"drainPlanDefaults,omitempty"`

	// drainRules say what happens to each Pod. The first rule that selects a Pod applies. A Pod that no rule selects is evacuated with
	// drain order 0. The rules can be changed at any time.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	DrainRules []DrainRule `json:"drainRules,omitempty"`

	// drainLabelPolicy says whether the Pod label cluster.x-k8s.io/drain is honored. With Honor, Pods with the value skip stay on the
	// Node, and the drain waits for Pods with the value wait-completed to complete. The label takes precedence over drainRules, except
	// that a rule named drain-label-skip or drain-label-wait-completed replaces the built-in one. With Ignore, only drainRules apply.
	// The policy can be changed at any time.
	// +optional
	// +default="Honor"
	DrainLabelPolicy DrainLabelPolicy `json:"drainLabelPolicy,omitempty"`

	// evacuation says how Pods are evacuated.
	// +optional
	// +kubebuilder:default={}
	Evacuation EvacuationPolicy `json:"evacuation,omitempty,omitzero"`

	// excludeFromLoadBalancers adds the label node.kubernetes.io/exclude-from-external-load-balancers to the selected Nodes before
	// their first eviction, so that load balancers stop sending traffic to them. Stage Complete removes the label, unless the Node had
	// it before.
	// +optional
	ExcludeFromLoadBalancers bool `json:"excludeFromLoadBalancers,omitempty"`

	// reason explains to people why the Nodes are maintained.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
}

// NodeMaintenance is a declarative request to cordon or drain Nodes. See KEP-4212.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodemaintenances,scope=Cluster,shortName=nm,categories=cluster-api
// +kubebuilder:printcolumn:name="Stage",type="string",JSONPath=".spec.stage",description="How far the maintenance goes"
// +kubebuilder:printcolumn:name="Drained",type="string",JSONPath=".status.conditions[?(@.type=='Drained')].status",description="Whether all Pods that must be drained have terminated"
// +kubebuilder:printcolumn:name="Nodes",type="string",JSONPath=".status.summary.progress",description="Drained Nodes and selected Nodes"
// +kubebuilder:printcolumn:name="Pending",type="integer",JSONPath=".status.summary.podsPending",description="Pods that must be drained and have no Evacuation yet"
// +kubebuilder:printcolumn:name="Evacuating",type="integer",JSONPath=".status.summary.podsEvacuating",description="Pods that have an Evacuation"
// +kubebuilder:printcolumn:name="Skipped",type="integer",JSONPath=".status.summary.podsSkipped",description="Pods that stay on their Nodes",priority=1
// +kubebuilder:printcolumn:name="Blocking",type="string",JSONPath=".status.summary.blocking",description="What the drain has been waiting for the longest"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=".spec.reason",description="Why the Nodes are maintained",priority=1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type NodeMaintenance struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired maintenance.
	// +required
	Spec NodeMaintenanceSpec `json:"spec,omitempty,omitzero"`

	// status is the observed progress. Until a manager has observed the NodeMaintenance, observedGeneration is -1.
	// +optional
	// +default={"observedGeneration": -1}
	Status NodeMaintenanceStatus `json:"status,omitempty,omitzero"`
}

// NodeMaintenanceList is a list of NodeMaintenances.
// +kubebuilder:object:root=true
type NodeMaintenanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeMaintenance `json:"items"`
}

// Drains reports whether the NodeMaintenance drains Nodes: it is in stage Drain and is not being deleted, since deletion completes it.
func (m *NodeMaintenance) Drains() bool {
	return m.Spec.Stage == StageDrain && m.DeletionTimestamp.IsZero()
}

// IsDrained reports whether all Pods that must be drained under the current spec have terminated. Before the controller has observed a
// change of the spec, they have not.
func (m *NodeMaintenance) IsDrained() bool {
	drained := meta.FindStatusCondition(m.Status.Conditions, NodeMaintenanceDrained)
	return m.Spec.Stage == StageDrain && drained != nil && drained.Status == metav1.ConditionTrue && drained.ObservedGeneration == m.Generation
}

// StaysSchedulable reports whether the NodeMaintenance leaves its Node schedulable although it is in stage Cordon: its Machine waits for a
// turn.
func (m *NodeMaintenance) StaysSchedulable() bool {
	return m.Spec.Stage == StageCordon && m.Annotations[OwnerMachineAnnotation] != "" && m.Annotations[WaitingNodeAnnotation] == string(WaitingNodesSchedulable)
}

// HasEnded reports whether the NodeMaintenance was deleted and its manager has let it go: only finalizers of other actors keep it, and it
// does nothing.
func (m *NodeMaintenance) HasEnded() bool {
	return !m.DeletionTimestamp.IsZero() && !slices.Contains(m.Finalizers, MaintenanceCompletionFinalizer)
}

// StageStart returns the start time of a stage, nil if it has not started.
func (m *NodeMaintenance) StageStart(stage NodeMaintenanceStage) *time.Time {
	for i := range m.Status.StageStatuses {
		if m.Status.StageStatuses[i].Name == stage {
			return &m.Status.StageStatuses[i].StartTimestamp.Time
		}
	}
	return nil
}

// DrainStart returns the time from which the drain timeout counts, nil until stage Drain has started: the time in DrainStartedAnnotation,
// or else OwnDrainStart.
func (m *NodeMaintenance) DrainStart() *time.Time {
	start := m.OwnDrainStart()
	if start == nil {
		return nil
	}
	if recorded := m.RecordedDrainStart(); recorded != nil {
		return recorded
	}
	return start
}

// RecordedDrainStart returns the time in DrainStartedAnnotation, nil if it has none: a NodeMaintenance that was recreated continues a drain
// that started then.
func (m *NodeMaintenance) RecordedDrainStart() *time.Time {
	recorded, err := time.Parse(time.RFC3339, m.Annotations[DrainStartedAnnotation])
	if err != nil {
		return nil
	}
	return &recorded
}

// OwnDrainStart returns when the drain started as far as the NodeMaintenance knows, nil until then: the start of stage Drain, or the time
// at which Pods had to be drained again after the drain had ended.
func (m *NodeMaintenance) OwnDrainStart() *time.Time {
	start := m.StageStart(StageDrain)
	if start == nil {
		return nil
	}
	drained := meta.FindStatusCondition(m.Status.Conditions, NodeMaintenanceDrained)
	if drained != nil && drained.Status == metav1.ConditionFalse && drained.LastTransitionTime.After(*start) { // it was True
		return &drained.LastTransitionTime.Time
	}
	return start
}
