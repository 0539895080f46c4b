// Package leftovers decides what maintenances that are gone have left behind: they may have been deleted by force, or restored
// from a backup, or their manager was away for good. Whatever some maintenance still minds is left to it, since it takes back
// itself what it has done, and knows what others want.
package leftovers

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/lifecycle"
	"github.com/capnm/cluster-api-node-maintenance/drain/selection"
)

// Observation is a Node, with all that may have to do with it.
type Observation struct {
	// Name of the Node, which may be gone: then Node is nil.
	Name string
	Node *corev1.Node
	// Evacuations are those that are noted to be of its Pods.
	Evacuations []v1alpha1.Evacuation
	// Maintenances are all of the cluster.
	Maintenances []v1alpha1.NodeMaintenance
}

// Left is what nobody minds any more.
type Left struct {
	// Record: the Node carries a record of a NodeMaintenance, see cordon.Recorded. The Node must be restored to its recorded state,
	// and the records removed.
	Record bool
	// Conditions of ours on the Node.
	Conditions []corev1.NodeConditionType
	// Evacuations that NodeMaintenances ask for. That is to be withdrawn; they end by themselves when nobody else asks.
	Evacuations []*v1alpha1.Evacuation
}

// Nothing says whether all is in order.
func (l Left) Nothing() bool { return !l.Record && len(l.Conditions) == 0 && len(l.Evacuations) == 0 }

// On finds what is left on a Node.
func On(o Observation) Left {
	if slices.ContainsFunc(o.Maintenances, o.minds) {
		return Left{}
	}
	left := Left{}
	if o.Node != nil {
		left.Record = cordon.Recorded(o.Node)
		_, left.Conditions = lifecycle.Changes(o.Node.Status.Conditions, lifecycle.Wanted(o.planned()), time.Time{})
	}
	for i := range o.Evacuations {
		if e := &o.Evacuations[i]; evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
			left.Evacuations = append(left.Evacuations, e)
		}
	}
	return left
}

// minds says whether a maintenance has to do with the Node: in any stage but Idle, until it is gone.
func (o Observation) minds(m v1alpha1.NodeMaintenance) bool {
	if m.Spec.Stage == v1alpha1.StageIdle {
		return false
	}
	if o.Node == nil {
		names, _ := selection.Names(&m)
		return slices.Contains(names, o.Name) || selection.Mentions(&m, o.Name)
	}
	return selection.Selects(&m, o.Node) || selection.Means(&m, o.Node) && selection.Mentions(&m, o.Name)
}

// planned are the maintenances that announce themselves on the Node.
func (o Observation) planned() []lifecycle.Maintenance {
	var planned []lifecycle.Maintenance
	for i := range o.Maintenances {
		if m := &o.Maintenances[i]; m.Spec.Stage == v1alpha1.StageIdle && selection.Selects(m, o.Node) {
			planned = append(planned, lifecycle.Maintenance{Name: m.Name, Stage: m.Spec.Stage, Ending: !m.DeletionTimestamp.IsZero()})
		}
	}
	return planned
}
