package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DaemonSetPodsPolicy says what happens to the Pods of DaemonSets.
// +kubebuilder:validation:Enum=Skip;Drain
type DaemonSetPodsPolicy string

const (
	// DaemonSetPodsSkip leaves them on the Node.
	DaemonSetPodsSkip DaemonSetPodsPolicy = "Skip"
	// DaemonSetPodsDrain ends them last, after the volumes have detached.
	DaemonSetPodsDrain DaemonSetPodsPolicy = "Drain"
)

// OutdatedNodesPolicy says what happens to the Nodes of a rolling MachineDeployment that are yet to be replaced.
// +kubebuilder:validation:Enum=Ignore;Announce;Cordon
type OutdatedNodesPolicy string

const (
	// OutdatedNodesIgnore does nothing ahead of time.
	OutdatedNodesIgnore OutdatedNodesPolicy = "Ignore"
	// OutdatedNodesAnnounce creates an Idle NodeMaintenance for each.
	OutdatedNodesAnnounce OutdatedNodesPolicy = "Announce"
	// OutdatedNodesCordon makes them unschedulable, so that no evicted Pod lands on a Node that goes next.
	OutdatedNodesCordon OutdatedNodesPolicy = "Cordon"
)

// NodeAgentPolicy says whether the node agent runs on the Nodes of a Cluster.
// +kubebuilder:validation:Enum=Disabled;Enabled
type NodeAgentPolicy string

const (
	// NodeAgentDisabled runs no agent.
	NodeAgentDisabled NodeAgentPolicy = "Disabled"
	// NodeAgentEnabled runs the agent (feature gate NodeAgent).
	NodeAgentEnabled NodeAgentPolicy = "Enabled"
)

// RolloutPolicy is how rollouts of MachineDeployments are served.
type RolloutPolicy struct {
	// outdatedNodes says what happens to the Nodes that are yet to be replaced.
	// +optional
	// +default="Announce"
	OutdatedNodes OutdatedNodesPolicy `json:"outdatedNodes,omitempty"`
}

// MachineDrainPolicySpec opts Machines in, and says how their Nodes are drained.
// A Machine follows the first policy that selects it, by name; without one it is left to Cluster API.
type MachineDrainPolicySpec struct {
	// clusterSelector selects Machines by the labels of their Cluster. Absent or empty: any.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// machineSelector selects Machines by their labels. Absent or empty: any.
	// +optional
	MachineSelector *metav1.LabelSelector `json:"machineSelector,omitempty"`

	// drainPlan is handed to each NodeMaintenance; see its spec.drainPlan.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.podSelector) || (has(e.podSelector.matchLabels) && size(e.podSelector.matchLabels) > 0) || (has(e.podSelector.matchExpressions) && size(e.podSelector.matchExpressions) > 0))",message="an empty podSelector is refused: leave it out to select all Pods"
	// +kubebuilder:validation:XValidation:rule="self.all(e, self.exists_one(x, x == e))",message="drainPlan has a duplicate entry"
	// +kubebuilder:validation:XValidation:rule="self.map(e, e.podType == 'Static' ? 2 : e.podType == 'DaemonSet' ? 1 : 0).isSorted()",message="drainPlan is out of order: Default, then DaemonSet, then Static"
	// +kubebuilder:validation:XValidation:rule="['Default', 'DaemonSet', 'Static'].all(t, self.filter(e, e.podType == t).map(e, e.podPriority * 2 + (has(e.podSelector) ? 0 : 1)).isSorted())",message="drainPlan is out of order: podPriority ascends within a podType, and at equal podPriority entries with a podSelector come first"
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty"`

	// drainPlanDefaults is handed to each NodeMaintenance; see its spec.drainPlanDefaults. Absent: None without a drainPlan, so
	// that the Pods of one MachineDrainRule order are evicted together, as Cluster API does; PriorityTiers with a drainPlan.
	// +optional
	DrainPlanDefaults DrainPlanDefaults `json:"drainPlanDefaults,omitempty"`

	// daemonSetPods says what happens to the Pods of DaemonSets.
	// +optional
	// +default="Skip"
	DaemonSetPods DaemonSetPodsPolicy `json:"daemonSetPods,omitempty"`

	// surge says for which Deployments replicas are added before their Pods are removed. With OnRequest the Pods decide, by the
	// annotation evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io: 10000/controller. The default is Never: a surge creates
	// Pods and changes replicas, which only the operator of the fleet can decide.
	// +optional
	// +default="Never"
	Surge SurgePolicy `json:"surge,omitempty"`

	// statefulSetPods says whether the Pods of a StatefulSet are evicted in order, one at a time. It concerns StatefulSets with
	// podManagementPolicy OrderedReady and update strategy RollingUpdate.
	// +optional
	// +default="Ordered"
	StatefulSetPods StatefulSetPodsPolicy `json:"statefulSetPods,omitempty"`

	// progressDeadlineSeconds is how long an evacuator may go without reporting progress.
	// +optional
	// +default=1800
	// +kubebuilder:validation:Minimum=600
	// +kubebuilder:validation:Maximum=21600
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`

	// evacuators says which evacuators may take over Pods.
	// +optional
	// +default="Any"
	Evacuators EvacuatorsPolicy `json:"evacuators,omitempty"`

	// unhealthyBudget says what happens to unready Pods whose own budget can never have room.
	// +optional
	// +default="Respect"
	UnhealthyBudget UnhealthyBudgetPolicy `json:"unhealthyBudget,omitempty"`

	// onTimeout says what happens to Pods that are left when the Machine's nodeDrainTimeoutSeconds are over.
	// +optional
	// +default="Release"
	OnTimeout OnTimeoutPolicy `json:"onTimeout,omitempty"`

	// excludeFromLoadBalancers labels the Node before its first eviction, so that load balancers stop sending traffic to it.
	// +optional
	// +default=true
	ExcludeFromLoadBalancers *bool `json:"excludeFromLoadBalancers,omitempty"`

	// maxParallelDrains limits how many Nodes of one Cluster drain at once: a number, or a percentage of its Machines.
	// Absent: no limit.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([1-9][0-9]?|100)%$') : self >= 1",message="maxParallelDrains is a number from 1 or a percentage from 1% to 100%"
	MaxParallelDrains *intstr.IntOrString `json:"maxParallelDrains,omitempty"`

	// rollout is how rollouts of MachineDeployments are served.
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutPolicy `json:"rollout,omitempty,omitzero"`

	// nodeAgent runs the experimental agent on the Nodes of the selected Clusters.
	// +optional
	// +default="Disabled"
	NodeAgent NodeAgentPolicy `json:"nodeAgent,omitempty"`
}

// MachineDrainPolicyStatus is what the policy does at present.
type MachineDrainPolicyStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the policy.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// clusters is how many Clusters have Machines that follow this policy.
	// +optional
	Clusters int32 `json:"clusters"`

	// machines is how many Machines follow this policy.
	// +optional
	Machines int32 `json:"machines"`

	// activeDrains is how many of them are being drained.
	// +optional
	ActiveDrains int32 `json:"activeDrains"`

	// longestWaits are the drains that something holds up, those of the Machines that were deleted first. At most a few are
	// named, and what is said of them may be some seconds old.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	LongestWaits []DrainWait `json:"longestWaits,omitempty"`
}

// DrainWait is a drain that something holds up.
type DrainWait struct {
	// machine is the name of the Machine.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`

	// cluster is the name of its Cluster.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Cluster string `json:"cluster,omitempty"`

	// since is when the Machine was deleted.
	// +required
	Since metav1.Time `json:"since,omitempty,omitzero"`

	// reason is that of the Machine's condition NodeMaintenance.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// message says what holds the drain up, and on which Pods.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// MachineDrainPolicy opts Machines in to declarative drains. One empty policy manages all Machines of its Namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machinedrainpolicies,scope=Namespaced,shortName=mdp,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:printcolumn:name="Clusters",type="integer",JSONPath=".status.clusters",description="Clusters with Machines that follow this policy"
// +kubebuilder:printcolumn:name="Machines",type="integer",JSONPath=".status.machines",description="Machines that follow this policy"
// +kubebuilder:printcolumn:name="Draining",type="integer",JSONPath=".status.activeDrains",description="Machines that are being drained"
// +kubebuilder:printcolumn:name="Waiting",type="date",JSONPath=".status.longestWaits[0].since",description="Since when the longest wait of a drain lasts"
// +kubebuilder:printcolumn:name="Surge",type="string",JSONPath=".spec.surge",priority=1
// +kubebuilder:printcolumn:name="DaemonSets",type="string",JSONPath=".spec.daemonSetPods",priority=1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type MachineDrainPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec selects Machines and says how their Nodes are drained.
	// +optional
	Spec MachineDrainPolicySpec `json:"spec,omitempty"`

	// status is what the policy does at present.
	// +optional
	Status MachineDrainPolicyStatus `json:"status,omitempty,omitzero"`
}

// MachineDrainPolicyList is a list of MachineDrainPolicies.
// +kubebuilder:object:root=true
type MachineDrainPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineDrainPolicy `json:"items"`
}

// GetConditions returns the conditions.
func (p *MachineDrainPolicy) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the conditions.
func (p *MachineDrainPolicy) SetConditions(conditions []metav1.Condition) {
	p.Status.Conditions = conditions
}
