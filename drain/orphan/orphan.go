// Package orphan finds what deleted NodeMaintenances have left behind in a workload cluster: they may have been deleted without their
// finalizer, or a restore may have brought their objects back. A Node that an existing NodeMaintenance is responsible for has no
// orphans: that NodeMaintenance restores the Node itself when it completes. Only one in stage Drain, or one that ends, is responsible for
// Evacuations.
package orphan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Observation is a Node with all objects that may refer to it.
type Observation struct {
	// Name is the name of the Node.
	Name string
	// Node is nil if the Node does not exist.
	Node *corev1.Node
	// Evacuations are the Evacuations of Pods of the Node, by their annotation.
	Evacuations []v1alpha1.Evacuation
	// Maintenances are all NodeMaintenances of the workload cluster.
	Maintenances []v1alpha1.NodeMaintenance
	// Machine is the Machine of the Node, or nil: see MachineOf.
	Machine *clusterv1.Machine
	// Wanted is the stage of the NodeMaintenance that the manager keeps for the Machine, see machinedrain.WantedStage.
	Wanted v1alpha1.NodeMaintenanceStage
}

// Orphans is what no existing NodeMaintenance is responsible for.
type Orphans struct {
	// Record means that the Node has a record of a NodeMaintenance, see cordon.Recorded: the Node must be restored to its recorded state, and
	// the records removed.
	Record bool
	// Conditions are the types of this project's conditions on the Node.
	Conditions []corev1.NodeConditionType
	// Evacuations have NodeMaintenances as their instigator, which must withdraw. An Evacuation without another instigator is then
	// cancelled.
	Evacuations []*v1alpha1.Evacuation
}

// Empty reports whether nothing is left behind.
func (l Orphans) Empty() bool { return !l.Record && len(l.Conditions) == 0 && len(l.Evacuations) == 0 }

// Possible reports whether a Node has traces of NodeMaintenances, some of which may be orphaned.
func Possible(node *corev1.Node) bool {
	return cordon.Recorded(node) || nodecondition.HasMaintenanceConditions(node.Status.Conditions) || daemonset.Tainted(node) ||
		node.Annotations[v1alpha1.StaticPodTargetsAnnotation] != ""
}

// Appeared reports whether a change of a Node has added traces that may be orphaned: a NodeMaintenance may vanish while its Node is being
// cordoned.
func Appeared(before, after *corev1.Node) bool {
	conditions := func(node *corev1.Node) bool { return nodecondition.HasMaintenanceConditions(node.Status.Conditions) }
	return cordon.Recorded(after) && !cordon.Recorded(before) || conditions(after) && !conditions(before)
}

// MachineOf returns the Machine of a Node, nil if there is none: the one whose nodeRef names the Node, or else one without a nodeRef that
// has the provider ID of the Node. If there is neither, it returns a deleted Machine that has the hook, and no nodeRef and no provider ID:
// its infrastructure machine, which is not read here, may have the provider ID of the Node. node is nil if the Node does not exist.
func MachineOf(machines []clusterv1.Machine, name string, node *corev1.Node) *clusterv1.Machine {
	var withProviderID, unknown *clusterv1.Machine
	for i := range machines {
		m := &machines[i]
		switch {
		case m.Status.NodeRef.Name == name:
			return m
		case m.Status.NodeRef.IsDefined() || node == nil || node.Spec.ProviderID == "":
			continue
		case m.Spec.ProviderID == node.Spec.ProviderID:
			withProviderID = m
		case m.Spec.ProviderID == "" && !m.DeletionTimestamp.IsZero() && machinedrain.HasHook(m):
			unknown = m
		}
	}
	return cmp.Or(withProviderID, unknown)
}

// Find returns what is left behind on a Node. While the NodeMaintenance of its Machine is going to be recreated, it returns nothing that
// this one will be responsible for, and while the Machine is paused, nothing. The Node of a deleted Machine stays cordoned.
func Find(o Observation) Orphans {
	if o.IsAwaited() && o.Wanted != v1alpha1.StageCordon || o.isPaused() {
		return Orphans{}
	}
	left := Orphans{}
	if o.Node != nil && !o.IsAwaited() && !slices.ContainsFunc(o.Maintenances, o.isManaged) {
		left.Record = cordon.Recorded(o.Node) && !machinedrain.KeepsNodeCordoned(o.Machine)
		_, left.Conditions = nodecondition.Changes(o.Node.Status.Conditions, nodecondition.Wanted(o.planned()), time.Time{})
	}
	if slices.ContainsFunc(o.Maintenances, o.isWithdrawn) {
		return left
	}
	for i := range o.Evacuations {
		if e := &o.Evacuations[i]; evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			left.Evacuations = append(left.Evacuations, e)
		}
	}
	return left
}

// HasOwners reports whether existing NodeMaintenances are responsible for everything on the Node, so that nothing is left behind.
func (o Observation) HasOwners() bool {
	return slices.ContainsFunc(o.Maintenances, o.isManaged) && slices.ContainsFunc(o.Maintenances, o.isWithdrawn)
}

// IsAwaited reports whether the NodeMaintenance of the Machine is going to change the Node, although it may not exist now: in stage Cordon
// or Drain. For a paused Machine that is not known.
func (o Observation) IsAwaited() bool {
	return o.Wanted == v1alpha1.StageCordon || o.Wanted == v1alpha1.StageDrain || o.isPaused()
}

func (o Observation) isPaused() bool {
	return o.Machine != nil && machinedrain.HasPauseAnnotation(o.Machine)
}

// isManaged reports whether a maintenance is responsible for the Node: in every stage but Idle, until it has ended.
func (o Observation) isManaged(m v1alpha1.NodeMaintenance) bool {
	return m.Spec.Stage != v1alpha1.StageIdle && !m.HasEnded() && o.concerns(&m)
}

// isWithdrawn reports whether a maintenance is responsible for the Evacuations on the Node: it evacuates Pods, or withdraws.
func (o Observation) isWithdrawn(m v1alpha1.NodeMaintenance) bool {
	withdraws := m.Spec.Stage == v1alpha1.StageComplete || !m.DeletionTimestamp.IsZero() && slices.Contains(m.Finalizers, v1alpha1.MaintenanceCompletionFinalizer)
	return (withdraws || m.Drains()) && o.concerns(&m)
}

// concerns reports whether a maintenance selects the Node, or has selected it and has not released it yet.
func (o Observation) concerns(m *v1alpha1.NodeMaintenance) bool {
	if o.Node == nil {
		return slices.Contains(nodeselection.KnownNodes(m), o.Name)
	}
	return nodeselection.Selects(m, o.Node) || nodeselection.CouldSelect(m, o.Node) && nodeselection.HasNodeStatus(m, o.Name)
}

// planned returns the maintenances in stage Idle that select the Node.
func (o Observation) planned() []nodecondition.Maintenance {
	var planned []nodecondition.Maintenance
	for i := range o.Maintenances {
		if m := &o.Maintenances[i]; m.Spec.Stage == v1alpha1.StageIdle && nodeselection.Selects(m, o.Node) {
			planned = append(planned, nodecondition.Maintenance{Name: m.Name, Stage: m.Spec.Stage, Ending: !m.DeletionTimestamp.IsZero()})
		}
	}
	return planned
}
