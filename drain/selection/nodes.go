package selection

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Names returns the names that a maintenance's nodeSelector consists of, where it selects by name alone.
func Names(m *v1alpha1.NodeMaintenance) (names []string, only bool) {
	for _, term := range m.Spec.NodeSelector.NodeSelectorTerms {
		if len(term.MatchExpressions) > 0 || len(term.MatchFields) != 1 || term.MatchFields[0].Operator != corev1.NodeSelectorOpIn || len(term.MatchFields[0].Values) != 1 {
			return nil, false
		}
		names = append(names, term.MatchFields[0].Values[0])
	}
	return names, true
}

// Means says whether a Node is one that the maintenance is about: where a UID is recorded, another Node of that name isn't.
func Means(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	uid := m.Annotations[v1alpha1.NodeUIDAnnotation]
	return uid == "" || uid == string(node.UID)
}

// Selects says whether a maintenance selects a Node.
func Selects(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool { return Of(m)(node) }

// Of tells the Nodes that a maintenance selects from others. A nodeSelector that can't be read selects none.
func Of(m *v1alpha1.NodeMaintenance) func(*corev1.Node) bool {
	if names, only := Names(m); only {
		return func(node *corev1.Node) bool { return slices.Contains(names, node.Name) && Means(m, node) }
	}
	parsed, err := nodeaffinity.NewNodeSelector(m.Spec.NodeSelector.Core())
	return func(node *corev1.Node) bool { return err == nil && Means(m, node) && parsed.Match(node) }
}

// AnyNode is the key of maintenances that may have to do with any Node. No Node has that name.
const AnyNode = "*"

// Keys are what to look a maintenance up by: the names of all Nodes that it selects or mentions, or AnyNode, where it may select
// others, or others may show that it doesn't select all.
func Keys(m *v1alpha1.NodeMaintenance) []string {
	names, only := Names(m)
	if !only || Doubted(m) {
		return []string{AnyNode}
	}
	keys := sets.New(names...)
	for i := range m.Status.NodeStatuses {
		keys.Insert(m.Status.NodeStatuses[i].NodeRef.Name)
	}
	return sets.List(keys)
}

// Mentions says whether the status of a maintenance speaks of a Node: it has selected it, and hasn't let go of it yet.
func Mentions(m *v1alpha1.NodeMaintenance, node string) bool {
	return slices.ContainsFunc(m.Status.NodeStatuses, func(status v1alpha1.NodeMaintenanceNodeStatus) bool { return status.NodeRef.Name == node })
}
