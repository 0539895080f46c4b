package daemonset

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// Draining is a maintenance in stage Drain, and what it has published for a Node.
type Draining struct {
	Maintenance *v1alpha1.NodeMaintenance
	Targets     []v1alpha1.DrainTarget
}

// On returns the maintenances in stage Drain that have published drain targets for the Node. One that is made for another
// Node of that name isn't meant.
func On(node *corev1.Node, maintenances []v1alpha1.NodeMaintenance) []Draining {
	var draining []Draining
	for i := range maintenances {
		m := &maintenances[i]
		if uid := m.Annotations[v1alpha1.NodeUIDAnnotation]; m.Spec.Stage != v1alpha1.StageDrain || uid != "" && uid != string(node.UID) {
			continue
		}
		for _, status := range m.Status.NodeStatuses {
			if status.NodeRef.Name == node.Name {
				draining = append(draining, Draining{Maintenance: m, Targets: plan.Published(&m.Status, status)})
			}
		}
	}
	return draining
}

// TaintWanted says whether a Node is to have our taint: as long as the drain of some maintenance has come to the Pods of
// DaemonSets there. Drain targets never backtrack, so it stays until the last such maintenance leaves its stage, goes, or
// doesn't select the Node any more.
func TaintWanted(draining []Draining) bool {
	return slices.ContainsFunc(draining, func(d Draining) bool { return len(daemonSetRows(d.Targets)) > 0 })
}

// Affected returns the Nodes, by name, for which a change of a maintenance may make a difference here. before is nil for a new
// maintenance, after for one that is gone. Maintenances change all the time, and seldom in what concerns DaemonSets.
func Affected(before, after *v1alpha1.NodeMaintenance) []string {
	was, is := rowsByNode(before), rowsByNode(after)
	rulesChanged := before != nil && after != nil && before.Generation != after.Generation
	affected := map[string]bool{}
	for node, rows := range was {
		if rulesChanged || !apiequality.Semantic.DeepEqual(rows, is[node]) {
			affected[node] = true
		}
	}
	for node := range is {
		if _, known := was[node]; !known {
			affected[node] = true
		}
	}
	return slices.Sorted(maps.Keys(affected))
}

// rowsByNode returns the drain targets of DaemonSets, of Nodes that have any.
func rowsByNode(m *v1alpha1.NodeMaintenance) map[string][]v1alpha1.DrainTarget {
	if m == nil || m.Spec.Stage != v1alpha1.StageDrain {
		return nil
	}
	byNode := map[string][]v1alpha1.DrainTarget{}
	for _, status := range m.Status.NodeStatuses {
		if rows := daemonSetRows(plan.Published(&m.Status, status)); len(rows) > 0 {
			byNode[status.NodeRef.Name] = rows
		}
	}
	return byNode
}

func daemonSetRows(targets []v1alpha1.DrainTarget) []v1alpha1.DrainTarget {
	var rows []v1alpha1.DrainTarget
	for _, target := range targets {
		if target.PodType == v1alpha1.PodTypeDaemonSet {
			rows = append(rows, target)
		}
	}
	return rows
}
