package machinedrain

import (
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Facts are what the decision to drain a deleted Machine's Node looks at.
type Facts struct {
	Machine *clusterv1.Machine
	// ClusterDeleting: the Cluster has a deletionTimestamp.
	ClusterDeleting bool
	// ControlPlaneDeleting: the object behind controlPlaneRef has a deletionTimestamp.
	ControlPlaneDeleting bool
	// ControlPlaneExternal: the control plane is managed outside of Machines (EKS, AKS, GKE, hosted control planes).
	ControlPlaneExternal bool
	// ControlPlaneMachines is how many control plane Machines of the Cluster aren't being deleted.
	ControlPlaneMachines int
	// InfraMachineDeleted: the infrastructure machine isn't there or is being deleted.
	InfraMachineDeleted bool
	// NodeGone: the workload cluster was asked, and has no such Node.
	NodeGone bool
}

// SkipReason says why a deleted Machine's Node isn't drained.
type SkipReason string

// The reasons, in the order in which they are looked for. All but the last are Cluster API's own:
// https://github.com/kubernetes-sigs/cluster-api/blob/v1.14.2/core/reconcilers/machine/machine_controller.go (isDeleteNodeAllowed, isNodeDrainAllowed).
const (
	NotSkipped              SkipReason = ""
	SkipClusterDeleting     SkipReason = "the Cluster is being deleted"
	SkipNoNode              SkipReason = "the Machine has no Node"
	SkipControlPlaneGoing   SkipReason = "the control plane is being deleted"
	SkipNoControlPlane      SkipReason = "no control plane Machine is left"
	SkipExcluded            SkipReason = "the Machine has the annotation " + clusterv1.ExcludeNodeDrainingAnnotation
	SkipPreTerminateStarted SkipReason = "the Machine waits for its pre-terminate hooks already"
	SkipInfraMachineDeleted SkipReason = "the infrastructure machine is gone or being deleted"
	SkipNodeGone            SkipReason = "the Node is gone"
)

// Skip says whether, and why, the Node of a deleted Machine isn't drained. Cluster API wouldn't either.
func Skip(f Facts) SkipReason {
	m := f.Machine
	_, excluded := m.Annotations[clusterv1.ExcludeNodeDrainingAnnotation]
	switch {
	case f.ClusterDeleting:
		return SkipClusterDeleting
	case !m.Status.NodeRef.IsDefined():
		return SkipNoNode
	case f.ControlPlaneDeleting:
		return SkipControlPlaneGoing
	case !f.ControlPlaneExternal && f.ControlPlaneMachines == 0:
		return SkipNoControlPlane
	case excluded:
		return SkipExcluded
	case m.Status.Deletion != nil && !m.Status.Deletion.WaitForPreTerminateHookStartTime.IsZero():
		return SkipPreTerminateStarted
	case f.InfraMachineDeleted:
		return SkipInfraMachineDeleted
	case f.NodeGone:
		return SkipNodeGone
	default:
		return NotSkipped
	}
}

// NodeNameOf finds the Node with a provider ID, empty if there is none, or more than one.
func NodeNameOf(providerID string, nodes []corev1.Node) string {
	name := ""
	for i := range nodes {
		if nodes[i].Spec.ProviderID != providerID {
			continue
		}
		if name != "" {
			return ""
		}
		name = nodes[i].Name
	}
	return name
}
