// Package orphan finds what deleted NodeMaintenances have left behind in a workload cluster: they may have been deleted without their
// finalizer, or a restore may have brought their objects back. A Node that an existing NodeMaintenance is responsible for has no
// orphans: that NodeMaintenance restores the Node itself when it completes.
package orphan

import (
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
	// Machine is the Machine of the Node, or nil.
	Machine *clusterv1.Machine
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

// Find returns what is left behind on a Node. It returns nothing while the Machine of the Node drains: its NodeMaintenance is recreated. The Node
// of a deleted Machine stays cordoned.
func Find(o Observation) Orphans {
	if slices.ContainsFunc(o.Maintenances, o.isManaged) || o.Machine != nil && machinedrain.IsDraining(o.Machine) {
		return Orphans{}
	}
	left := Orphans{}
	if o.Node != nil {
		left.Record = cordon.Recorded(o.Node) && !machinedrain.KeepsNodeCordoned(o.Machine)
		_, left.Conditions = nodecondition.Changes(o.Node.Status.Conditions, nodecondition.Wanted(o.planned()), time.Time{})
	}
	for i := range o.Evacuations {
		if e := &o.Evacuations[i]; evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			left.Evacuations = append(left.Evacuations, e)
		}
	}
	return left
}

// isManaged reports whether a maintenance is responsible for the Node: in every stage but Idle, until the maintenance no longer exists.
func (o Observation) isManaged(m v1alpha1.NodeMaintenance) bool {
	if m.Spec.Stage == v1alpha1.StageIdle {
		return false
	}
	if o.Node == nil {
		names, _ := nodeselection.Names(&m)
		return slices.Contains(names, o.Name) || nodeselection.HasNodeStatus(&m, o.Name)
	}
	return nodeselection.Selects(&m, o.Node) || nodeselection.CouldSelect(&m, o.Node) && nodeselection.HasNodeStatus(&m, o.Name)
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
