package v1alpha1

import "strings"

// Names that KEP-4212 and KEP-4563 define.
const (
	// MaintenanceCompletionFinalizer keeps a NodeMaintenance until stage Complete has withdrawn from its Evacuations and restored its
	// Nodes. The controller stores it before the first side effect.
	MaintenanceCompletionFinalizer = "nodemaintenance.k8s.io/maintenance-completion"

	// InstigatorFinalizerPrefix is the prefix of the finalizer with which an instigator requests an Evacuation. The rest is the DNS
	// subdomain of the instigator. An instigator withdraws by removing its finalizer.
	InstigatorFinalizerPrefix = "evacuation.coordination.k8s.io/instigator_"

	// NodeMaintenanceInstigatorFinalizer is the instigator finalizer of all NodeMaintenances. For Pods that are evicted at once, an annotation
	// of the same name takes its place.
	NodeMaintenanceInstigatorFinalizer = InstigatorFinalizerPrefix + "nodemaintenance.k8s.io"

	// EvacuatorPriorityAnnotationPrefix is the prefix of the Pod annotation that names an evacuator of the Pod. The rest of the key is the
	// evacuator class, which has at most 54 characters. The value is "PRIORITY" or "PRIORITY/ROLE".
	EvacuatorPriorityAnnotationPrefix = "evacuation.coordination.k8s.io/priority_"
)

// Annotations and labels of this project.
const (
	// NodeOriginAnnotation on a Node is the state in which the first maintenance found it, "schedulable" or "unschedulable", or
	// "schedulable" if another actor has made it schedulable since. The last maintenance that ends restores this state.
	NodeOriginAnnotation = "maintenance.cluster.x-k8s.io/found"

	// ExcludedFromLoadBalancersAnnotation on a Node records that a maintenance has set the label
	// node.kubernetes.io/exclude-from-external-load-balancers. The last maintenance that needs the label removes both.
	ExcludedFromLoadBalancersAnnotation = "maintenance.cluster.x-k8s.io/excluded-from-load-balancers"

	// NoDaemonSetPodsTaint on a Node has the effect NoSchedule. It prevents DaemonSets from recreating their Pods after a maintenance has
	// evicted them.
	NoDaemonSetPodsTaint = "maintenance.cluster.x-k8s.io/no-daemonset-pods"

	// SurgeAnnotation on a Deployment or HorizontalPodAutoscaler is the baseline that a surge restores. See package drain/surge.
	SurgeAnnotation = "maintenance.cluster.x-k8s.io/surge"

	// SurgingLabel is on every Deployment and HorizontalPodAutoscaler that has SurgeAnnotation, so that they can be listed. On a Deployment,
	// its value identifies the surge.
	SurgingLabel = "maintenance.cluster.x-k8s.io/surging"

	// RestartedAt is an annotation in the Pod template of a Deployment, and so of its Pods, and a label of the Deployment. Its value is when a
	// drain has restarted the Deployment, in seconds since 1970.
	RestartedAt = "maintenance.cluster.x-k8s.io/restarted-at"

	// DeletionCostAnnotation on a Pod is the deletion cost that the Pod had before a surge chose it for removal. It can be empty.
	DeletionCostAnnotation = "maintenance.cluster.x-k8s.io/deletion-cost-before"

	// OwnerClusterAnnotation on a NodeMaintenance is the Cluster ("namespace/name") of the Machine that it serves.
	OwnerClusterAnnotation = "maintenance.cluster.x-k8s.io/owner-cluster"

	// OwnerMachineAnnotation on a NodeMaintenance is the Machine ("namespace/name") that it serves.
	OwnerMachineAnnotation = "maintenance.cluster.x-k8s.io/owner-machine"

	// OwnerManagementClusterAnnotation on a NodeMaintenance is the UID of the Namespace kube-system of the management cluster.
	OwnerManagementClusterAnnotation = "maintenance.cluster.x-k8s.io/owner-management-cluster"

	// NodeUIDAnnotation on a NodeMaintenance is the UID of the Node that it serves. A Node of the same name with another UID is not
	// selected.
	NodeUIDAnnotation = "maintenance.cluster.x-k8s.io/node-uid"

	// ShutdownBootAnnotation on a NodeMaintenance that the node agent has created is the boot ID of the Node at its shutdown. With
	// NodeUIDAnnotation, the manager completes and deletes the NodeMaintenance when this Node no longer exists.
	ShutdownBootAnnotation = "maintenance.cluster.x-k8s.io/boot-id"

	// RequestedForAnnotation on a NodeMaintenance that serves a Machine is the purpose of the last request: RequestedForRollout,
	// RequestedForStage or RequestedForDeletion.
	RequestedForAnnotation = "maintenance.cluster.x-k8s.io/requested-for"

	// VolumesDetachedAnnotation on a NodeMaintenance that serves a Machine means that the manager has waited for the volumes of the Node, and
	// then removed the drain rule that skips the Pods of DaemonSets. Without it, the manager restores the rule. Only managers may write it.
	VolumesDetachedAnnotation = "maintenance.cluster.x-k8s.io/volumes-detached"

	// WaitingNodeAnnotation on a NodeMaintenance in stage Cordon whose Machine waits for a turn: with the value Schedulable, the Node is not
	// cordoned. Only managers may write it.
	WaitingNodeAnnotation = "maintenance.cluster.x-k8s.io/waiting-node"

	// MachineStageAnnotation on a Machine that is not being deleted requests a NodeMaintenance of its Node. The value is the stage: Idle,
	// Cordon, Drain or Complete. When the annotation is removed, the NodeMaintenance is completed.
	MachineStageAnnotation = "maintenance.cluster.x-k8s.io/stage"

	// MachineStageReasonAnnotation on a Machine explains to people why MachineStageAnnotation requests a stage. The reason of the
	// NodeMaintenance includes it.
	MachineStageReasonAnnotation = "maintenance.cluster.x-k8s.io/stage-reason"

	// UpdateAllowedAnnotation on a Machine that Cluster API updates in place means that the update may begin: the maintenance of the Node has
	// progressed as far as inPlaceUpdates of the Machine's policy requires. The value is the reason of the condition MachineNodeMaintenance
	// at that time, Drained, TimedOut, Skipped or Cordoned, and the UID of the Machine: Drained/6a1ff5c1-…. With another UID, it is a copy and
	// means nothing. The manager removes the annotation before it restores the Node.
	UpdateAllowedAnnotation = "maintenance.cluster.x-k8s.io/update-allowed"

	// EvacuationNodeAnnotation on an Evacuation is the name of the Pod's Node. It is empty if the Pod had no Node.
	EvacuationNodeAnnotation = "maintenance.cluster.x-k8s.io/node"

	// StaticPodsOfLabel is on the Evacuations of static Pods. Its value is StaticPodsOf the Node. The agent on the Node watches
	// these Evacuations.
	StaticPodsOfLabel = "maintenance.cluster.x-k8s.io/static-pods-of"

	// ShutdownConfigLabel on a Node is the name of its shutdown configuration: <name>.yaml in the node agent's ConfigMap. Cluster API
	// copies labels of this domain from Machines to their Nodes, so the template of a MachineDeployment can set it.
	ShutdownConfigLabel = "maintenance.node.cluster.x-k8s.io/shutdown-config"

	// StaticPodTargetsAnnotation on a Node has the drain targets of its static Pods as JSON. The agent on the Node holds their manifests
	// while the annotation is present.
	StaticPodTargetsAnnotation = "maintenance.cluster.x-k8s.io/static-pod-targets"

	// StaticPodCauseAnnotation on a Node with StaticPodTargetsAnnotation names the NodeMaintenances that have published these targets, with
	// their reasons. The agent reports it on the Evacuations of the static Pods.
	StaticPodCauseAnnotation = "maintenance.cluster.x-k8s.io/static-pod-cause"

	// EvacuatorsPolicyAnnotation on an Evacuation is the EvacuatorsPolicy of its instigator, if the instigator limits evacuators.
	EvacuatorsPolicyAnnotation = "maintenance.cluster.x-k8s.io/evacuators"

	// EvacuateAfterAnnotation on an Evacuation defers it: no evacuator is activated and the Pod is not evicted before this time, in the
	// format of RFC 3339. NodeMaintenances set it for replacements that return to a cordoned Node.
	EvacuateAfterAnnotation = "maintenance.cluster.x-k8s.io/evacuate-after"

	// PreDrainHookAnnotation is the Machine deletion hook of this provider. Cluster API does not drain a deleted Machine that has it.
	PreDrainHookAnnotation = "pre-drain.delete.hook.machine.cluster.x-k8s.io/node-maintenance"

	// HookOwner is the value of the hook, and of the annotations that the manager sets on Machines when it releases the hook.
	HookOwner = "node-maintenance.cluster.x-k8s.io"

	// DrainRequestedAnnotation on a Machine that is not being deleted is the time at which the manager first observed that
	// MachineStageAnnotation or an in-place update requests stage Drain, in the format of RFC 3339, and the UID of the Machine:
	// 2026-01-01T00:00:00Z/6a1ff5c1-…. With another UID, it is a copy and means nothing. The drains that maxParallelDrains delays
	// start in the order of these times and of deletions. The manager removes the annotation when the maintenance is complete.
	DrainRequestedAnnotation = "maintenance.cluster.x-k8s.io/drain-requested"

	// The following annotations on a Machine that drains and has a timeout record the course of its drain, in the format of RFC 3339. The
	// manager decides from them while it cannot observe the drain. It removes them when the maintenance is complete.

	// DrainHeldAnnotation is the time since which pre-drain hooks of other owners have held the drain of a deleted Machine. It is also
	// recorded if the Machine has no timeout. The NodeMaintenance of the Machine is suspended until the manager removes the annotation: when
	// the hooks are gone, the Machine has a turn, and the NodeMaintenance counts the drain timeout from then. It stays on a Machine whose
	// drain has not continued when the hook of this provider is released.
	DrainHeldAnnotation = "maintenance.cluster.x-k8s.io/drain-held"

	// WaitingForTurnAnnotation is the time since which the Machine has waited for a turn, because of maxParallelDrains. It is also recorded if
	// the Machine has no timeout, since one may be set while the workload cluster is unreachable.
	WaitingForTurnAnnotation = "maintenance.cluster.x-k8s.io/waiting-for-turn"

	// TurnLimitAnnotation is the limit under which the Machine waits for a turn, the policy that sets it, and the UID of the Machine:
	// 25%,workers,topology.kubernetes.io/zone=1/6a1ff5c1-…, where one of the two limits may be missing: 25%,workers/6a1ff5c1-…, or
	// ,workers,topology.kubernetes.io/zone=1/6a1ff5c1-…. The limit holds while no policy selects the Machine. With another UID, it is a copy
	// and means nothing. No drain begins in the first three seconds in which another policy selects the Machine: the recorded one may be
	// replaced.
	TurnLimitAnnotation = "maintenance.cluster.x-k8s.io/turn-limit"

	// DrainBlockedAnnotation is the time since which something has prevented the drain from beginning, or kept the manager from observing
	// whether it has begun: for example the first failed attempt to connect to the workload cluster.
	DrainBlockedAnnotation = "maintenance.cluster.x-k8s.io/drain-blocked"

	// DrainStartedAnnotation is the time at which the drain started. The NodeMaintenance of the Machine has the same annotation if its stage
	// Drain started at another time, for example because it was recreated. Only managers may write it there.
	DrainStartedAnnotation = "maintenance.cluster.x-k8s.io/drain-started"

	// DrainEndedAnnotation is the time at which the drain ended before it timed out. Without VolumeWaitStartedAnnotation, the volumes have
	// detached as well.
	DrainEndedAnnotation = "maintenance.cluster.x-k8s.io/drain-ended"

	// VolumeWaitStartedAnnotation is the time at which the wait for volumes started.
	VolumeWaitStartedAnnotation = "maintenance.cluster.x-k8s.io/volume-wait-started"

	// BundleVersionAnnotation on an object of the bundle in a workload cluster is the version of the bundle.
	BundleVersionAnnotation = "maintenance.cluster.x-k8s.io/bundle-version"

	// BundleSpecAnnotation on the DaemonSet of the node agent is the spec with which the bundle has created or updated it. A later version of
	// the bundle keeps what users have changed since.
	BundleSpecAnnotation = "maintenance.cluster.x-k8s.io/bundle-spec"
)

// Purposes of a NodeMaintenance that serves a Machine.
const (
	// RequestedForRollout means that a rollout is going to replace the Machine.
	RequestedForRollout = "Rollout"
	// RequestedForStage means that the Machine has the annotation MachineStageAnnotation, or that Cluster API updates it in place.
	RequestedForStage = "Stage"
	// RequestedForDeletion means that the Machine is being deleted.
	RequestedForDeletion = "Deletion"
)

// Classes of the built-in evacuators.
const (
	EvacuatorClassDeployment  = "deployment.apps.k8s.io"
	EvacuatorClassStatefulSet = "statefulset.apps.k8s.io"
	EvacuatorClassDaemonSet   = "daemonset.apps.k8s.io"

	// EvacuatorClassKubelet is the class for static Pods. The node agent is this evacuator.
	EvacuatorClassKubelet = "kubelet.k8s.io"

	// EvacuatorRoleController is the role of the evacuator for the Pod's controller. Its priority is EvacuatorControllerPriority.
	EvacuatorRoleController     = "controller"
	EvacuatorControllerPriority = int32(10000)
)

// Condition types of Nodes that the node agent sets, and their reasons.
const (
	// NodeAgentReady is True while the agent can delay a shutdown of the Node. If it cannot, or if the kubelet handles shutdowns, the
	// reason says so.
	NodeAgentReady = "NodeMaintenanceAgentReady"

	// ReasonShutdownDelayed means that the agent delays a shutdown until the Node is drained.
	ReasonShutdownDelayed = "ShutdownDelayed"
	// ReasonDelayTooShort means that the agent can delay a shutdown only for less time than the configuration requires.
	ReasonDelayTooShort = "DelayTooShort"
	// ReasonKubeletGracefulShutdown means that the kubelet's graceful shutdown is enabled and terminates the Pods.
	ReasonKubeletGracefulShutdown = "KubeletGracefulShutdown"
	// ReasonShutdownNotDelayed means that the agent cannot delay a shutdown. The message says why.
	ReasonShutdownNotDelayed = "ShutdownNotDelayed"
	// ReasonNodeShutdown means that the Node shuts down, and that the agent delays this until the Node is drained. It stays until the agent
	// runs again after the boot.
	ReasonNodeShutdown = "NodeShutdown"
	// ReasonShutdownDelayDisabled means that the configuration has a period of 0, so that the agent does nothing in a shutdown.
	ReasonShutdownDelayDisabled = "ShutdownDelayDisabled"
	// ReasonContainerRuntimeUnavailable means that the container runtime does not answer. In a shutdown, the agent cannot terminate the Pods
	// that remain on the drained Node, or all Pods without the API server.
	ReasonContainerRuntimeUnavailable = "ContainerRuntimeUnavailable"
	// ReasonKubeletUnavailable means that the agent cannot read the configuration and the Pods of the kubelet. It does not know the priorities
	// of Pods, nor whether the kubelet's graceful shutdown is enabled. The message says why.
	ReasonKubeletUnavailable = "KubeletUnavailable"
	// ReasonKubeletCannotBeStopped means that the agent delays a shutdown until the Node is drained, but cannot stop the kubelet, which
	// restarts the Pods that the agent terminates. The message says why.
	ReasonKubeletCannotBeStopped = "KubeletCannotBeStopped"

	// ReasonInvalidConfiguration means that the agent cannot use the configuration that applies to the Node. The message says why, and
	// which configuration it uses instead.
	ReasonInvalidConfiguration = "InvalidConfiguration"
)

// StaticPodsOf returns the value of StaticPodsOfLabel for a Node. It truncates the name to the maximum length of a label value.
func StaticPodsOf(node string) string {
	const longest = 63
	if len(node) > longest {
		node = node[:longest]
	}
	return strings.TrimRight(node, "-.")
}
