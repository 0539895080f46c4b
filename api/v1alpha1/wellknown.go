package v1alpha1

import "strings"

// Names that KEP-4212 and KEP-4563 define, letter by letter.
const (
	// MaintenanceCompletionFinalizer holds a NodeMaintenance until its Complete stage has finished: Nodes schedulable
	// again, Evacuations withdrawn. It is stored before the first side effect.
	MaintenanceCompletionFinalizer = "nodemaintenance.k8s.io/maintenance-completion"

	// InstigatorFinalizerPrefix starts the finalizer by which an instigator asks for an Evacuation. What follows is the
	// instigator's DNS subdomain. Removing the finalizer withdraws the request.
	InstigatorFinalizerPrefix = "evacuation.coordination.k8s.io/instigator_"

	// NodeMaintenanceInstigatorFinalizer is the instigator finalizer that all NodeMaintenances share.
	NodeMaintenanceInstigatorFinalizer = InstigatorFinalizerPrefix + "nodemaintenance.k8s.io"

	// EvacuatorPriorityAnnotationPrefix starts the Pod annotation by which an evacuator registers for a Pod:
	// the rest of the key is the evacuator class (at most 54 characters), the value is "PRIORITY" or "PRIORITY/ROLE".
	EvacuatorPriorityAnnotationPrefix = "evacuation.coordination.k8s.io/priority_"
)

// Annotations and labels of this project.
const (
	// NodeOriginAnnotation on a Node records how the first maintenance that cordoned it found it, so that the last one
	// to end can leave it that way: "schedulable" or "unschedulable".
	NodeOriginAnnotation = "maintenance.cluster.x-k8s.io/found"

	// ExcludedFromLoadBalancersAnnotation on a Node records that it was a maintenance that labelled it
	// node.kubernetes.io/exclude-from-external-load-balancers, and the last one to end takes that back.
	ExcludedFromLoadBalancersAnnotation = "maintenance.cluster.x-k8s.io/excluded-from-load-balancers"

	// NoDaemonSetPodsTaint on a Node, with effect NoSchedule, keeps the Pods of DaemonSets from coming back during a maintenance
	// that has come to them.
	NoDaemonSetPodsTaint = "maintenance.cluster.x-k8s.io/no-daemonset-pods"

	// SurgeAnnotation on a Deployment records, as long as room is made for Pods of it that leave, what it was like before; on a
	// HorizontalPodAutoscaler likewise. See drain/surge.
	SurgeAnnotation = "maintenance.cluster.x-k8s.io/surge"

	// SurgingLabel is on every Deployment and HorizontalPodAutoscaler that has SurgeAnnotation, so that they are found.
	SurgingLabel = "maintenance.cluster.x-k8s.io/surging"

	// DeletionCostAnnotation on a Pod that a surge has chosen to leave holds the deletion cost that it had before, if any.
	DeletionCostAnnotation = "maintenance.cluster.x-k8s.io/deletion-cost-before"

	// OwnerClusterAnnotation on a NodeMaintenance names the Cluster ("namespace/name") whose Machine it serves.
	OwnerClusterAnnotation = "maintenance.cluster.x-k8s.io/owner-cluster"

	// OwnerMachineAnnotation on a NodeMaintenance names the Machine ("namespace/name") that it serves.
	OwnerMachineAnnotation = "maintenance.cluster.x-k8s.io/owner-machine"

	// OwnerManagementClusterAnnotation on a NodeMaintenance holds the UID of the management cluster's kube-system Namespace.
	OwnerManagementClusterAnnotation = "maintenance.cluster.x-k8s.io/owner-management-cluster"

	// NodeUIDAnnotation on a NodeMaintenance holds the UID of the Node that it was made for: a Node of the same name with
	// another UID isn't selected.
	NodeUIDAnnotation = "maintenance.cluster.x-k8s.io/node-uid"

	// RequestedForAnnotation on a NodeMaintenance that serves a Machine says what it was requested for last: RequestedForRollout,
	// RequestedForStage or RequestedForDeletion.
	RequestedForAnnotation = "maintenance.cluster.x-k8s.io/requested-for"

	// MachineStageAnnotation on a Machine that isn't being deleted asks for a NodeMaintenance of its Node. The value is the
	// stage: Idle, Cordon, Drain or Complete. Without it, the NodeMaintenance is completed.
	MachineStageAnnotation = "maintenance.cluster.x-k8s.io/stage"

	// EvacuationNodeAnnotation on an Evacuation names the Node that the Pod was on when it was found; empty if on none.
	EvacuationNodeAnnotation = "maintenance.cluster.x-k8s.io/node"

	// StaticPodsOfLabel on an Evacuation says of which Node's static Pods its Pod is one: the value is StaticPodsOf the Node.
	// The agent on the Node watches those.
	StaticPodsOfLabel = "maintenance.cluster.x-k8s.io/static-pods-of"

	// ShutdownConfigLabel on a Node names the configuration of its shutdown: <name>.yaml in the node agent's ConfigMap. Cluster API
	// copies labels of this domain from Machines to their Nodes, so the template of a MachineDeployment can set it.
	ShutdownConfigLabel = "maintenance.node.cluster.x-k8s.io/shutdown-config"

	// StaticPodTargetsAnnotation on a Node has the drain targets, as JSON, that drains of the Node have published for its
	// static Pods. The agent on the Node holds manifests as long as it is there.
	StaticPodTargetsAnnotation = "maintenance.cluster.x-k8s.io/static-pod-targets"

	// EvacuatorsPolicyAnnotation on an Evacuation says which evacuators may take it over, where its instigator limits them:
	// the value is an EvacuatorsPolicy.
	EvacuatorsPolicyAnnotation = "maintenance.cluster.x-k8s.io/evacuators"

	// EvacuateAfterAnnotation on an Evacuation defers it: no evacuator is activated and the Pod is not evicted before this time, in the
	// format of RFC 3339. NodeMaintenances set it for replacements that return to a cordoned Node.
	EvacuateAfterAnnotation = "maintenance.cluster.x-k8s.io/evacuate-after"

	// PreDrainHookAnnotation is our Machine deletion hook. CAPI doesn't drain a deleted Machine while it is there.
	PreDrainHookAnnotation = "pre-drain.delete.hook.machine.cluster.x-k8s.io/node-maintenance"

	// HookOwner is the value of our hook, and of the annotations that we set on Machines when we release it.
	HookOwner = "node-maintenance.cluster.x-k8s.io"

	// DrainStartedAnnotation on a deleted Machine that has a drain timeout keeps when the drain has started, as RFC 3339 has it,
	// for the time when the workload cluster can't be reached.
	DrainStartedAnnotation = "maintenance.cluster.x-k8s.io/drain-started"

	// VolumeWaitStartedAnnotation on a deleted Machine that has a timeout for volumes keeps when the wait for them has started.
	VolumeWaitStartedAnnotation = "maintenance.cluster.x-k8s.io/volume-wait-started"

	// BundleVersionAnnotation on a CRD or admission policy in a workload cluster says which bundle it came with.
	BundleVersionAnnotation = "maintenance.cluster.x-k8s.io/bundle-version"
)

// What a NodeMaintenance that serves a Machine was requested for.
const (
	// RequestedForRollout: a rollout is going to replace the Machine.
	RequestedForRollout = "Rollout"
	// RequestedForStage: the Machine has the annotation MachineStageAnnotation.
	RequestedForStage = "Stage"
	// RequestedForDeletion: the Machine is being deleted.
	RequestedForDeletion = "Deletion"
)

// Evacuator classes of the evacuators that are built in.
const (
	EvacuatorClassDeployment  = "deployment.apps.k8s.io"
	EvacuatorClassStatefulSet = "statefulset.apps.k8s.io"
	EvacuatorClassDaemonSet   = "daemonset.apps.k8s.io"

	// EvacuatorClassKubelet is the class for static Pods; an agent on the Node serves it.
	EvacuatorClassKubelet = "kubelet.k8s.io"

	// EvacuatorRoleController is the role of the one evacuator that is the Pod's own controller; its priority is
	// EvacuatorControllerPriority.
	EvacuatorRoleController     = "controller"
	EvacuatorControllerPriority = int32(10000)
)

// What the node agent says about itself, as a condition of its Node and the reasons of that.
const (
	// NodeAgentReady is True while the agent delays a shutdown of the Node; where it can't, or has left it to the kubelet, the
	// reason says so.
	NodeAgentReady = "NodeMaintenanceAgentReady"

	ReasonShutdownDelayed   = "ShutdownDelayed"
	ReasonDelayedTooShort   = "DelayTooShort"
	ReasonShutdownByKubelet = "KubeletGracefulShutdown"
	ReasonNoSystemBus       = "ShutdownNotDelayed"

	// ReasonShutdownConfigInvalid: the agent cannot use the configuration that applies to the Node. The message says why, and which one
	// it uses instead.
	ReasonShutdownConfigInvalid = "InvalidConfiguration"
)

// StaticPodsOf returns the value of StaticPodsOfLabel for a Node. A label is shorter than a name may be.
func StaticPodsOf(node string) string {
	const longest = 63
	if len(node) > longest {
		node = node[:longest]
	}
	return strings.TrimRight(node, "-.")
}
