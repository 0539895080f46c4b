package nodemaintenance

import (
	"cmp"
	"context"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
)

// releaseDeselectedNodes completes the NodeMaintenance for Nodes that it no longer selects because their labels have changed. As in stage
// Complete, it withdraws from Evacuations and restores the Nodes, unless other NodeMaintenances hold them. These Nodes are known from the
// status, which lists them until they are released and restored.
func (r *Reconciler) releaseDeselectedNodes(ctx context.Context, s *scope) (bool, error) {
	nodes, err := deselectedNodes(ctx, s)
	if err != nil {
		return false, err
	}
	if _, byName := nodeselection.Names(s.maintenance); byName { // it selected the Nodes in stage Idle, and has only set conditions
		for _, node := range nodes {
			if r.hasLeftConditions(s, node) {
				s.unrestored, s.changesOthers = append(s.unrestored, node.Name), true
			}
		}
		return true, nil
	}
	var withdrawn []*corev1.Node
	for _, node := range nodes {
		others, err := r.readOthers(ctx, s, node) // earlier requests may have taken long
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(others, (*v1alpha1.NodeMaintenance).Drains) { // one that drains the Node decides about all Evacuations there
			withdrawn = append(withdrawn, node)
		}
	}
	if err := r.withdrawAll(ctx, s, withdrawn, nil); err != nil {
		return false, err
	}
	if len(nodes) > 0 && r.holdsNodes(s) {
		s.unrestored = nodeNames(nodes)
		return true, nil
	}
	failed, err := r.restoreNodes(ctx, s, nodes, func(*corev1.Node) func(*corev1.Node) bool { return cordon.Restore })
	for i, node := range nodes {
		if failed[i] {
			s.unrestored = append(s.unrestored, node.Name)
		}
	}
	return err == nil, err
}

// hasLeftConditions reports whether a Node that the NodeMaintenance no longer selects has conditions that must change.
func (r *Reconciler) hasLeftConditions(s *scope, node *corev1.Node) bool {
	set, remove := nodecondition.Changes(r.latest(s, node).Status.Conditions, nodecondition.Wanted(selecting(node, viewsOf(s.others))), s.now)
	return len(set)+len(remove) > 0
}

// deselectedNodes returns the Nodes that the status lists but the NodeMaintenance no longer selects. A Node that it selects by name and
// that has another UID is a different Node, which it has never changed.
func deselectedNodes(ctx context.Context, s *scope) ([]*corev1.Node, error) {
	names, _ := nodeselection.Names(s.maintenance)
	selected := sets.New(nodeNames(s.nodes)...).Insert(names...)
	var deselected []*corev1.Node
	for _, name := range sets.List(nodesInStatus(s.before)) {
		if selected.Has(name) {
			continue
		}
		node := &corev1.Node{}
		if err := s.client.Get(ctx, types.NamespacedName{Name: name}, node); answers.IgnoreDoesNotExist(err) != nil {
			return nil, errors.Wrapf(err, "getting Node %s", name)
		} else if err == nil && nodeselection.CouldSelect(s.maintenance, node) {
			deselected = append(deselected, node)
		}
	}
	return deselected, nil
}

// listNodes stores the selected Nodes in the status before the first side effect on them: a Node that is no longer selected is restored
// only if the status lists it. It removes no Node; report does when the Node was released. A NodeMaintenance that selects by name needs no
// such list.
func (r *Reconciler) listNodes(ctx context.Context, s *scope) (bool, error) {
	_, byName := nodeselection.Names(s.maintenance)
	missing := sets.New(nodeNames(s.nodes)...).Difference(nodesInStatus(s.before))
	if byName || missing.Len() == 0 || len(s.before.Status.NodeStatuses)+missing.Len() > progress.MaxNodes {
		return true, nil
	}
	changed := s.before.DeepCopy()
	for _, name := range sets.List(missing) {
		changed.Status.NodeStatuses = append(changed.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: name}, DrainStartTime: s.joinedAt()[name],
		})
	}
	slices.SortFunc(changed.Status.NodeStatuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return cmp.Compare(a.NodeRef.Name, b.NodeRef.Name) })
	if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(s.before, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, errors.Wrapf(answers.IgnoreDoesNotExist(err), "listing the selected Nodes in the status of NodeMaintenance %s", s.maintenance.Name)
	}
	s.before = changed
	s.maintenance.Status.NodeStatuses, s.maintenance.ResourceVersion = slices.Clone(changed.Status.NodeStatuses), changed.ResourceVersion
	return true, nil
}

// recordSelectedNodes makes the nodeStatuses list exactly the selected Nodes and those that must still be restored, with the start of the
// drain of those that joined later. It keeps the existing entries. deselectedNodes depends on this list.
func recordSelectedNodes(s *scope) {
	m, selected := s.maintenance, sets.New(nodeNames(s.nodes)...)
	m.Status.NodeStatuses = slices.DeleteFunc(slices.Clone(m.Status.NodeStatuses), func(status v1alpha1.NodeMaintenanceNodeStatus) bool {
		return !selected.Has(status.NodeRef.Name) && !slices.Contains(s.unrestored, status.NodeRef.Name)
	})
	for name := range selected.Difference(nodesInStatus(m)) {
		m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}})
	}
	for i := range m.Status.NodeStatuses {
		m.Status.NodeStatuses[i].DrainStartTime = s.joinedAt()[m.Status.NodeStatuses[i].NodeRef.Name]
	}
	slices.SortFunc(m.Status.NodeStatuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return cmp.Compare(a.NodeRef.Name, b.NodeRef.Name) })
}

// joinedAt returns when the drains of those Nodes began that joined after the start of stage Drain, by name.
func (s *scope) joinedAt() map[string]*metav1.Time {
	if s.joined != nil {
		return s.joined
	}
	listed := nodeselection.NodeStatuses(s.before)
	s.joined = map[string]*metav1.Time{}
	for _, node := range s.nodes {
		if at := draintimeout.Joined(s.before, listed[node.Name], node, s.now); at != nil {
			s.joined[node.Name] = at
		}
	}
	return s.joined
}

func nodesInStatus(m *v1alpha1.NodeMaintenance) sets.Set[string] {
	names := sets.New[string]()
	for i := range m.Status.NodeStatuses {
		names.Insert(m.Status.NodeStatuses[i].NodeRef.Name)
	}
	return names
}
