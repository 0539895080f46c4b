package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DaemonSetPodsPolicy says what happens to the Pods of DaemonSets.
// +kubebuilder:validation:Enum=Skip;Drain
type DaemonSetPodsPolicy string

const (
	// DaemonSetPodsSkip leaves the Pods of DaemonSets on the Node.
	DaemonSetPodsSkip DaemonSetPodsPolicy = "Skip"
	// DaemonSetPodsDrain evicts the Pods of DaemonSets last, after the volumes have been detached. They stay if the drain or
	// the wait for volumes has timed out.
	DaemonSetPodsDrain DaemonSetPodsPolicy = "Drain"
)

// OutdatedNodesPolicy says what happens to the Nodes that a rollout of a MachineDeployment has not replaced yet.
// +kubebuilder:validation:Enum=Ignore;Announce;Cordon
type OutdatedNodesPolicy string

const (
	// OutdatedNodesIgnore does not change the Nodes before their Machines are deleted.
	OutdatedNodesIgnore OutdatedNodesPolicy = "Ignore"
	// OutdatedNodesAnnounce creates a NodeMaintenance in stage Idle for each of the Nodes.
	OutdatedNodesAnnounce OutdatedNodesPolicy = "Announce"
	// OutdatedNodesCordon makes the Nodes unschedulable, so that no evicted Pod is scheduled to a Node that is replaced next.
	OutdatedNodesCordon OutdatedNodesPolicy = "Cordon"
)

// InPlaceUpdatesPolicy says what happens to the Node of a Machine while Cluster API updates the Machine in place.
// +kubebuilder:validation:Enum=Drain;Cordon;Ignore
type InPlaceUpdatesPolicy string

const (
	// InPlaceUpdatesDrain drains the Node before the update.
	InPlaceUpdatesDrain InPlaceUpdatesPolicy = "Drain"
	// InPlaceUpdatesCordon keeps the Node unschedulable during the update.
	InPlaceUpdatesCordon InPlaceUpdatesPolicy = "Cordon"
	// InPlaceUpdatesIgnore does not change the Node.
	InPlaceUpdatesIgnore InPlaceUpdatesPolicy = "Ignore"
)

// NodeAgentPolicy says whether the node agent runs on the Nodes of a Cluster.
// +kubebuilder:validation:Enum=Disabled;Enabled
type NodeAgentPolicy string

const (
	// NodeAgentDisabled does not run the agent.
	NodeAgentDisabled NodeAgentPolicy = "Disabled"
	// NodeAgentEnabled runs the agent (feature gate NodeAgent).
	NodeAgentEnabled NodeAgentPolicy = "Enabled"
)

// NextDrainPolicy says when the turn of a drain ends.
// +kubebuilder:validation:Enum=Immediately;WhenReplaced
type NextDrainPolicy string

const (
	// NextDrainImmediately ends the turn with the drain.
	NextDrainImmediately NextDrainPolicy = "Immediately"
	// NextDrainWhenReplaced ends the turn when the Pods that the drain has evicted are replaced by ready ones.
	NextDrainWhenReplaced NextDrainPolicy = "WhenReplaced"
)

// RolloutPolicy says what happens during rollouts of MachineDeployments.
type RolloutPolicy struct {
	// outdatedNodes says what happens to the Nodes that a rollout has not replaced yet.
	// +optional
	// +default="Announce"
	OutdatedNodes OutdatedNodesPolicy `json:"outdatedNodes,omitempty"`
}

// TopologyDrainLimit limits in how many domains of a topology Nodes are drained at the same time.
type TopologyDrainLimit struct {
	// key is the label of the Nodes whose values are the domains, for example topology.kubernetes.io/zone. A Node that does not have the
	// label, or has it without a value, is a separate domain.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$`
	Key string `json:"key,omitempty"`

	// maxDomains is the maximum number of domains.
	// +optional
	// +default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxDomains int32 `json:"maxDomains,omitempty"`
}

// MachineDrainPolicySpec selects Machines and says how their Nodes are drained. If several policies select a Machine, the first one by name
// applies. If no policy selects it, Cluster API drains its Node.
// +kubebuilder:validation:XValidation:rule="(has(self.nextDrain) && self.nextDrain == 'WhenReplaced') == has(self.replacementTimeoutSeconds)",message="nextDrain WhenReplaced requires replacementTimeoutSeconds, and replacementTimeoutSeconds requires nextDrain WhenReplaced"
// +kubebuilder:validation:XValidation:rule="!has(self.replacementTimeoutSeconds) || has(self.maxParallelDrains) || has(self.maxParallelDrainsPerTopology)",message="nextDrain WhenReplaced requires maxParallelDrains or maxParallelDrainsPerTopology"
type MachineDrainPolicySpec struct {
	// clusterSelector selects Machines by the labels of their Cluster. If it is not set or empty, the Machines of all Clusters are selected.
	// +optional
	ClusterSelector *LabelSelector `json:"clusterSelector,omitempty"`

	// machineSelector selects Machines by their labels. If it is not set or empty, all Machines are selected.
	// +optional
	MachineSelector *LabelSelector `json:"machineSelector,omitempty"`

	// drainPlan is the spec.drainPlan of the NodeMaintenances of the selected Machines.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.podSelector) || (has(e.podSelector.matchLabels) && size(e.podSelector.matchLabels) > 0) || (has(e.podSelector.matchExpressions) && size(e.podSelector.matchExpressions) > 0))",message="podSelector must not be empty: omit it to select all Pods"
	// +kubebuilder:validation:XValidation:rule="self.all(e, self.exists_one(x, x == e))",message="drainPlan has a duplicate entry"
	// +kubebuilder:validation:XValidation:rule="self.map(e, e.podType == 'Static' ? 2 : e.podType == 'DaemonSet' ? 1 : 0).isSorted()",message="drainPlan is out of order: Default, then DaemonSet, then Static"
	// +kubebuilder:validation:XValidation:rule="['Default', 'DaemonSet', 'Static'].all(t, self.filter(e, e.podType == t).map(e, e.podPriority * 2 + (has(e.podSelector) ? 0 : 1)).isSorted())",message="drainPlan is out of order: podPriority ascends within a podType, and at equal podPriority entries with a podSelector come first"
	DrainPlan []DrainPlanEntry `json:"drainPlan,omitempty"`

	// drainPlanDefaults is the spec.drainPlanDefaults of the NodeMaintenances of the selected Machines. If it is not set, it is
	// PriorityTiers with a drainPlan, and None without one: then the Pods with the same order of MachineDrainRules are evicted together,
	// whatever their priority, as by Cluster API, unless statefulSetPods orders the Pods of a StatefulSet.
	// +optional
	DrainPlanDefaults DrainPlanDefaults `json:"drainPlanDefaults,omitempty"`

	// daemonSetPods says what happens to the Pods of DaemonSets.
	// +optional
	// +default="Skip"
	DaemonSetPods DaemonSetPodsPolicy `json:"daemonSetPods,omitempty"`

	SharedEvacuationPolicy `json:",inline"`

	// excludeFromLoadBalancers adds the label node.kubernetes.io/exclude-from-external-load-balancers to the Node before the first
	// eviction, so that load balancers stop sending traffic to the Node.
	// +optional
	// +default=true
	ExcludeFromLoadBalancers *bool `json:"excludeFromLoadBalancers,omitempty"`

	// maxParallelDrains is the maximum number of Nodes of a Cluster whose Machines follow this policy and that are drained at the same time.
	// It is a number, or a percentage of the Cluster's worker Machines, rounded down, but at least one. If it is not set, there is no limit.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^([1-9][0-9]?|100)%$') : self >= 1 && self <= 2147483647",message="maxParallelDrains must be from 1 to 2147483647, or a percentage from 1% to 100%"
	MaxParallelDrains *intstr.IntOrString `json:"maxParallelDrains,omitempty"`

	// maxParallelDrainsPerTopology limits in how many domains, such as zones, Nodes of a Cluster whose Machines follow this policy are
	// drained at the same time. It applies with or without maxParallelDrains. If it is not set, there is no such limit.
	// +optional
	MaxParallelDrainsPerTopology TopologyDrainLimit `json:"maxParallelDrainsPerTopology,omitempty,omitzero"`

	// waitingNodes says what happens to the Nodes of Machines that wait because of one of these limits. Cordon cordons them, so that no
	// evicted Pod is scheduled to a Node that is drained next, except while no drain has made progress for a minute: a Pod may wait for a
	// replica that needs one of these Nodes. Schedulable cordons each Node when its drain starts.
	// +optional
	// +default="Cordon"
	WaitingNodes WaitingNodesPolicy `json:"waitingNodes,omitempty"`

	// turnPatienceSeconds is after how long without progress a drain no longer counts for these limits. The next Machine then begins, but at
	// most one drain in a Cluster at a time exceeds a limit because of this. If it is not set, a drain counts until it ends.
	// +optional
	// +kubebuilder:validation:Minimum=60
	TurnPatienceSeconds int32 `json:"turnPatienceSeconds,omitempty"`

	// nextDrain says when the drain of a deleted Machine no longer counts for these limits. Immediately: when it ends. WhenReplaced: when each
	// Pod that it has evicted is replaced by a ready one, or its controller wants no replacement, and after replacementTimeoutSeconds at the
	// latest. A Pod without a controller is not waited for. While that is not known, the drain counts.
	// +optional
	// +default="Immediately"
	NextDrain NextDrainPolicy `json:"nextDrain,omitempty"`

	// replacementTimeoutSeconds is how long after its end a drain counts at most with nextDrain: WhenReplaced, which requires it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	ReplacementTimeoutSeconds *int32 `json:"replacementTimeoutSeconds,omitempty"`

	// ignoredPreDrainHooks are pre-drain hooks of other owners that do not hold the drain of a deleted Machine: the names of the annotations
	// after pre-drain.delete.hook.machine.cluster.x-k8s.io/. Every other pre-drain hook holds the drain until its owner removes it. Ignore the
	// hook of a controller that waits for this drain itself.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	IgnoredPreDrainHooks []string `json:"ignoredPreDrainHooks,omitempty"`

	// rollout says what happens during rollouts of MachineDeployments.
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutPolicy `json:"rollout,omitempty,omitzero"`

	// inPlaceUpdates says what happens to the Node of a Machine while Cluster API updates the Machine in place (feature gate
	// InPlaceUpdates): Drain drains the Node as the Machine's deletion would, Cordon keeps it unschedulable, Ignore does not change it. The
	// recorded state of the Node is restored when the update has completed. The annotation maintenance.cluster.x-k8s.io/stage of the
	// Machine takes precedence. The extension that serves the hook UpdateMachine must wait for the drain: see package exp/inplace.
	// +optional
	// +default="Ignore"
	InPlaceUpdates InPlaceUpdatesPolicy `json:"inPlaceUpdates,omitempty"`

	// nodeAgent says whether the experimental node agent runs on the Nodes of the selected Clusters.
	// +optional
	// +default="Disabled"
	NodeAgent NodeAgentPolicy `json:"nodeAgent,omitempty"`
}

// Condition types of MachineDrainPolicies, and their reasons.
const (
	// MachineDrainPolicyMachinePoolsManaged is False if the policy selects Clusters with MachinePools whose infrastructure provider creates no
	// Machines. Their Nodes are not drained. Otherwise the policy does not have the condition.
	MachineDrainPolicyMachinePoolsManaged = "MachinePoolsManaged"

	// MachineDrainPolicySelectorsValid is False if a selector of the policy is invalid. Otherwise the policy does not have the condition.
	MachineDrainPolicySelectorsValid = "SelectorsValid"

	// MachineDrainPolicyStalled is True if a selector of the policy is invalid. Otherwise the policy does not have the condition. Tools that
	// compute the health of objects with kstatus, such as Flux, read it.
	MachineDrainPolicyStalled = "Stalled"

	// ReasonInvalidSelector means that a selector cannot be parsed. The message names it.
	ReasonInvalidSelector = "InvalidSelector"

	// ReasonNoMachines means that MachinePools with Nodes have no Machines. The message names them.
	ReasonNoMachines = "NoMachines"
)

// MachineDrainPolicyStatus is the observed state of a policy.
type MachineDrainPolicyStatus struct {
	// observedGeneration is the generation of the spec that the status reflects.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the policy. MachinePoolsManaged is False if there are MachinePools whose Nodes cannot be drained, because they have no
	// Machines. SelectorsValid is False, and Stalled is True, if a selector is invalid.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:XValidation:rule="self.lastTransitionTime >= timestamp('1970-01-01T00:00:00Z') && self.lastTransitionTime < timestamp('9999-01-01T00:00:00Z')",message="lastTransitionTime must be a time as in RFC 3339, from 1970 to 9998"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// clusters is the number of Clusters with Machines that follow this policy.
	// +optional
	Clusters int32 `json:"clusters"`

	// machines is the number of Machines that follow this policy.
	// +optional
	Machines int32 `json:"machines"`

	// activeDrains is the number of these Machines whose Nodes are being drained.
	// +optional
	ActiveDrains int32 `json:"activeDrains"`

	// longestWaits are the blocked drains, starting with the one that was requested first. The list has at most five entries,
	// which can be several seconds old.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	LongestWaits []DrainWait `json:"longestWaits,omitempty"`

	// recentDrains are the last drains of deleted Machines that have ended, starting with the one that ended last, and what became of the
	// Pods that they evicted. Beyond 16 drains, or 256 applications in all of them, the oldest drain is removed whose Pods have all been
	// replaced by ready ones, or else the oldest.
	// +optional
	// +listType=map
	// +listMapKey=machineUID
	// +kubebuilder:validation:MaxItems=16
	RecentDrains []RecentDrain `json:"recentDrains,omitempty"`
}

// DrainWait is a blocked drain.
type DrainWait struct {
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

	// since is the time at which the drain was requested: the deletion of the Machine, or the request for a drain in place.
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z') && self < timestamp('9999-01-01T00:00:00Z')",message="since must be a time as in RFC 3339, from 1970 to 9998"
	Since metav1.Time `json:"since,omitempty,omitzero"`

	// reason is the reason of the Machine's condition NodeMaintenance.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// message says what blocks the drain, and which Pods it blocks.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// MachineDrainPolicy selects the Machines whose Nodes this provider drains. An empty policy selects all Machines in its Namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machinedrainpolicies,scope=Namespaced,shortName=mdp,categories=cluster-api
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io/move="
// +kubebuilder:printcolumn:name="Clusters",type="integer",JSONPath=".status.clusters",description="Clusters with Machines that follow this policy"
// +kubebuilder:printcolumn:name="Machines",type="integer",JSONPath=".status.machines",description="Machines that follow this policy"
// +kubebuilder:printcolumn:name="Draining",type="integer",JSONPath=".status.activeDrains",description="Machines whose Nodes are being drained"
// +kubebuilder:printcolumn:name="Waiting",type="date",JSONPath=".status.longestWaits[0].since",description="Time of the oldest request among the blocked drains"
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

	// status is the observed state of the policy. Until a manager has observed the policy, observedGeneration is -1.
	// +optional
	// +default={"observedGeneration": -1}
	Status MachineDrainPolicyStatus `json:"status,omitempty,omitzero"`
}

// MachineDrainPolicyList is a list of MachineDrainPolicies.
// +kubebuilder:object:root=true
type MachineDrainPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineDrainPolicy `json:"items"`
}
