package machinedrain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Facts are the input of Skip.
type Facts struct {
	Machine *clusterv1.Machine
	// NodeUnknown means that the Machine has no nodeRef, and that its Node has not been looked up by its provider ID yet: see
	// NodeLookupDeadline.
	NodeUnknown bool
	// ClusterDeleting means that the Cluster has a deletionTimestamp.
	ClusterDeleting bool
	// ControlPlaneDeleting means that the object in controlPlaneRef has a deletionTimestamp.
	ControlPlaneDeleting bool
	// ControlPlaneExternal means that the control plane does not run on Machines (EKS, AKS, GKE, hosted control planes).
	ControlPlaneExternal bool
	// ControlPlaneMachines is the number of control plane Machines of the Cluster that are not being deleted.
	ControlPlaneMachines int
	// InfraMachineDeleted means that the infrastructure machine does not exist or is being deleted.
	InfraMachineDeleted bool
}

// SkipReason says why a deleted Machine's Node is not drained.
type SkipReason string

// The reasons, in the order in which Skip and SkipNode check them. All but those of SkipNode are those of Cluster API:
// https://github.com/kubernetes-sigs/cluster-api/blob/v1.14.2/core/reconcilers/machine/machine_controller.go (isDeleteNodeAllowed,
// isNodeDrainAllowed).
const (
	NotSkipped               SkipReason = ""
	SkipClusterDeleting      SkipReason = "the Cluster is being deleted"
	SkipNoNode               SkipReason = "the Machine has no Node"
	SkipControlPlaneDeleting SkipReason = "the control plane is being deleted"
	SkipNoControlPlane       SkipReason = "all control plane Machines are deleted or being deleted"
	SkipExcluded             SkipReason = "the Machine has the annotation " + clusterv1.ExcludeNodeDrainingAnnotation
	SkipPreTerminateStarted  SkipReason = "the Machine already waits for its pre-terminate hooks"
	SkipInfraMachineDeleted  SkipReason = "the infrastructure machine is deleted or being deleted"
	SkipNodeGone             SkipReason = "the Node does not exist"
	SkipOutOfService         SkipReason = "the Node is unreachable and has the taint " + corev1.TaintNodeOutOfService
)

// Overrules returns which parts of the deletion Cluster API must be told to skip, too, when the hook is removed. On a Node that is out of
// service, it would wait for the Pods. It may not have observed the deletion of the Cluster yet. For all other reasons, it skips the same
// parts anyway.
func (s SkipReason) Overrules() (drain, volumes bool) {
	return s == SkipClusterDeleting || s == SkipOutOfService, s == SkipClusterDeleting
}

// Skip returns why the Node of a deleted Machine is not drained, or NotSkipped. Cluster API would not drain such a Node either.
func Skip(f Facts) SkipReason {
	m := f.Machine
	switch {
	case f.ClusterDeleting:
		return SkipClusterDeleting
	case !m.Status.NodeRef.IsDefined() && !f.NodeUnknown:
		return SkipNoNode
	case f.ControlPlaneDeleting:
		return SkipControlPlaneDeleting
	case !f.ControlPlaneExternal && f.ControlPlaneMachines == 0:
		return SkipNoControlPlane
	case isExcluded(m, clusterv1.ExcludeNodeDrainingAnnotation):
		return SkipExcluded
	case m.Status.Deletion != nil && !m.Status.Deletion.WaitForPreTerminateHookStartTime.IsZero():
		return SkipPreTerminateStarted
	case f.InfraMachineDeleted:
		return SkipInfraMachineDeleted
	default:
		return NotSkipped
	}
}

// SkipInPlace is Skip for the drain in place of a Machine that is not being deleted: a user has requested it, so the other reasons have no
// effect.
func SkipInPlace(f Facts) SkipReason {
	if skip := Skip(f); skip == SkipClusterDeleting || skip == SkipNoNode {
		return skip
	}
	return NotSkipped
}

// SkipNode returns why the Node of a deleted Machine is not drained although Skip returns NotSkipped, or NotSkipped. node is nil if it does
// not exist. On an unreachable Node with the out-of-service taint no Pod runs: the administrator who sets the taint has made sure of that
// (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown). No PodDisruptionBudget protects
// its Pods.
func SkipNode(node *corev1.Node) SkipReason {
	switch {
	case node == nil:
		return SkipNodeGone
	case rules.Unreachable(node) && slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService }):
		return SkipOutOfService
	default:
		return NotSkipped
	}
}

// WaitsForVolumes reports whether the volumes of a drained Node must detach. As in Cluster API, they need not if the Machine has the
// exclude annotation, or if the Node is unreachable: its kubelet unmounts nothing.
func WaitsForVolumes(m *clusterv1.Machine, node *corev1.Node) bool {
	return !isExcluded(m, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation) && !rules.Unreachable(node)
}

// NodeLookupDeadline returns until when a deleted Machine that has a provider ID and no nodeRef waits for the connection to its workload
// cluster: until BlindPeriod has passed since its deletion, and since this process first failed to connect, and then until
// afterNextAttempt. failed is when an attempt last failed, zero if none has. clusterctl move loses the nodeRef, so that its Node is known
// only after a lookup. The wait is limited because the Machine may never have had a Node, and may be the reason that there is no
// connection: the first control plane Machine of a Cluster. Cluster API does not wait.
func NodeLookupDeadline(m *clusterv1.Machine, since, failed time.Time) time.Time {
	return afterNextAttempt(notBeforeRequest(m, since).Add(BlindPeriod), failed)
}

// ProviderIDOf returns the provider ID of an infrastructure machine, empty if it has none. Cluster API copies it to the Machine.
func ProviderIDOf(infraMachine *unstructured.Unstructured) string {
	providerID, _, _ := unstructured.NestedString(infraMachine.Object, "spec", "providerID")
	return providerID
}

// NodeNameOf returns the name of the Node with a provider ID. It is empty if no Node has it, or more than one.
func NodeNameOf(providerID string, nodes []corev1.Node) string { return NodeNamesOf(nodes)[providerID] }

// NodeNamesOf returns NodeNameOf for each provider ID that Nodes have.
func NodeNamesOf(nodes []corev1.Node) map[string]string {
	names := make(map[string]string, len(nodes))
	for i := range nodes {
		id, name := nodes[i].Spec.ProviderID, nodes[i].Name
		if _, isAmbiguous := names[id]; isAmbiguous || id == "" {
			name = ""
		}
		names[id] = name
	}
	return names
}

// NodeName returns the name of the Node of a Machine: that in its nodeRef, or else that which its NodeMaintenance selects, because the Node
// was found by the provider ID. maintenance is nil if the Machine has none. The name is empty if the Machine has no Node, or if it is not
// known.
func NodeName(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) string {
	if m.Status.NodeRef.IsDefined() || maintenance == nil {
		return m.Status.NodeRef.Name
	}
	if names, byName := nodeselection.Names(maintenance); byName && len(names) == 1 {
		return names[0]
	}
	return ""
}
