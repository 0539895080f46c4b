package nodemaintenance

import (
	"cmp"
	"context"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/selection"
)

// releaseLeft completes the maintenance for the Nodes that it doesn't select any more, because their labels have changed: as
// in stage Complete, Evacuations are withdrawn and Nodes left as they were found, unless others hold them. The status knows
// these Nodes, and says so until this is done.
func (r *Reconciler) releaseLeft(ctx context.Context, s *scope) (bool, error) {
	left, err := leftNodes(ctx, s)
	if err != nil {
		return false, err
	}
	for _, node := range left {
		// Another one that drains the Node decides about all its Evacuations.
		if !drainedByOthers(s, node) {
			if err := withdrawAll(ctx, s, node, nil); err != nil {
				return false, err
			}
		}
		if err := r.uncordonNode(ctx, s, node, false); err != nil {
			return false, err
		}
	}
	return true, nil
}

// leftNodes finds the Nodes that the status mentions and the maintenance doesn't select any more. Where it selects by name, a
// Node can't leave: one with another UID is another Node, and none of its business.
func leftNodes(ctx context.Context, s *scope) ([]*corev1.Node, error) {
	if _, byName := selection.Names(s.maintenance); byName {
		return nil, nil
	}
	selected := selectedSet(s)
	var left []*corev1.Node
	for name := range mentionedNodes(s.before) {
		if selected.Has(name) {
			continue
		}
		node := &corev1.Node{}
		if err := s.client.Get(ctx, types.NamespacedName{Name: name}, node); client.IgnoreNotFound(err) != nil {
			return nil, errors.Wrapf(err, "getting Node %s", name)
		} else if err == nil && selection.Means(s.maintenance, node) {
			left = append(left, node)
		}
	}
	return left, nil
}

func drainedByOthers(s *scope, node *corev1.Node) bool {
	return slices.ContainsFunc(s.others, func(other v1alpha1.NodeMaintenance) bool {
		return drains(&other) && selection.Selects(&other, node)
	})
}

// mention sees to it that the status knows all selected Nodes, and only those, with what was said of them before. From it
// follows who has left.
func mention(s *scope) {
	m, selected := s.maintenance, selectedSet(s)
	m.Status.NodeStatuses = slices.DeleteFunc(slices.Clone(m.Status.NodeStatuses), func(status v1alpha1.NodeMaintenanceNodeStatus) bool {
		return !selected.Has(status.NodeRef.Name)
	})
	for name := range selected.Difference(mentionedNodes(m)) {
		m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}})
	}
	slices.SortFunc(m.Status.NodeStatuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return cmp.Compare(a.NodeRef.Name, b.NodeRef.Name) })
}

// mentionedNodes are the Nodes that the status speaks of.
func mentionedNodes(m *v1alpha1.NodeMaintenance) sets.Set[string] {
	names := sets.New[string]()
	for i := range m.Status.NodeStatuses {
		names.Insert(m.Status.NodeStatuses[i].NodeRef.Name)
	}
	return names
}

func selectedSet(s *scope) sets.Set[string] {
	names := sets.New[string]()
	for _, node := range s.nodes {
		names.Insert(node.Name)
	}
	return names
}
