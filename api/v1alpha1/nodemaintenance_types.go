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

// DrainLabelPolicy says whether a maintenance honors the drain label of Pods.
// +kubebuilder:validation:Enum=Honor;Ignore
type DrainLabelPolicy string

const (
	// DrainLabelPolicyHonor does what the label cluster.x-k8s.io/drain asks for.
	DrainLabelPolicyHonor DrainLabelPolicy = "Honor"
	// DrainLabelPolicyIgnore leaves the label to the drain rules.
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

// NodeMaintenanceSpec is the intent to remove Pods from Nodes, so that the Nodes can be worked on.
//
// The rules for drainPlan are R2 and R3 of the design: see docs/design.md, "Drain plans".
// +kubebuilder:validation:XValidation:rule="self.nodeSelector == oldSelf.nodeSelector || oldSelf.stage == 'Idle'",message="nodeSelector is immutable once the stage has left Idle"
// +kubebuilder:validation:XValidation:rule="has(self.drainPlan) == has(oldSelf.drainPlan)",message="drainPlan is immutable"
// +kubebuilder:validation:XValidation:rule="self.drainPlanDefaults != 'None' || size(self.drainPlan) != 12 || !self.drainPlan.all(e, !has(e.podSelector) && e.podPriority in [1000000000, 2000000000, 2000001000, 2147483647])",message="drainPlanDefaults None requires a drainPlan: without one, drainPlan defaults to the entries of PriorityTiers"
type NodeMaintenanceSpec struct {
	// nodeSelector selects the Nodes to maintain. It can change only while the stage is Idle.
	// +required
	NodeSelector NodeSelector `json:"nodeSelector,omitempty,omitzero"`

	// stage is what to do with the Nodes. Stages only move forward: Idle, Cordon, Drain, Complete; any may be left out.
	// +optional
	// +default="Idle"
	// +kubebuilder:validation:XValidation:rule="oldSelf == self || oldSelf == 'Idle' || (oldSelf == 'Cordon' && self != 'Idle') || (oldSelf == 'Drain' && self == 'Complete')",message="stage only moves forward: Idle, Cordon, Drain, Complete"
	Stage NodeMaintenanceStage `json:"stage,omitempty"`

	// drainPlan is the order in which Pods are evacuated: by type (Default, then DaemonSet, then Static), then by priority,
	// entries with a selector before those without. Entries that the list leaves out are added in their sorted position wherever
	// the plan is used; drainPlanDefaults says which. Immutable.
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

	// drainPlanDefaults says which entries complete the drainPlan. PriorityTiers: the twelve entries that drainPlan defaults to,
	// so that critical Pods are evacuated after all others. None: one entry for each Pod type, so that the Pods of a type that no
	// other entry selects are evacuated together, whatever their priority; it requires a drainPlan. Immutable.
	// +optional
	// +default="PriorityTiers"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="drainPlanDefaults is immutable"
	DrainPlanDefaults DrainPlanDefaults `json:"drainPlanDefaults,omitempty"`

	// drainRules decide about each Pod; the first one that matches counts. A Pod that none matches drains at order 0.
	// They may change at any time.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	DrainRules []DrainRule `json:"drainRules,omitempty"`

	// drainLabelPolicy says whether the Pod label cluster.x-k8s.io/drain is honored. Honor: Pods labelled skip stay, and the drain
	// waits for Pods labelled wait-completed to complete, before any of the drainRules is looked at. Where drainRules has a rule
	// named drain-label-skip or drain-label-wait-completed, that rule replaces the built-in one. Ignore: only drainRules decide.
	// It may change at any time.
	// +optional
	// +default="Honor"
	DrainLabelPolicy DrainLabelPolicy `json:"drainLabelPolicy,omitempty"`

	// evacuation is how Pods are evacuated.
	// +optional
	// +kubebuilder:default={}
	Evacuation EvacuationPolicy `json:"evacuation,omitempty,omitzero"`

	// excludeFromLoadBalancers labels the selected Nodes before their first eviction with
	// node.kubernetes.io/exclude-from-external-load-balancers, so that load balancers stop sending traffic to them.
	// The label goes with stage Complete, if the maintenance has set it.
	// +optional
	ExcludeFromLoadBalancers bool `json:"excludeFromLoadBalancers,omitempty"`

	// reason tells people why the Nodes are maintained.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
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
