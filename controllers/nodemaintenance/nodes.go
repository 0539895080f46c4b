package nodemaintenance

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// selectNodes finds the Nodes of this NodeMaintenance and the NodeMaintenances that share Nodes with it.
func (r *Reconciler) selectNodes(ctx context.Context, s *scope) (bool, error) {
	var err error
	if s.nodes, err = selectedNodes(ctx, s.client, s.maintenance); err != nil {
		return false, err
	}
	for i := range s.nodes {
		s.nodes[i] = r.latest(s, s.nodes[i])
	}
	err = findNeighbours(ctx, s)
	return err == nil, err
}

// findNeighbours finds the NodeMaintenances that share Nodes with this one and, transitively through those in stage Drain, all that share
// Nodes with them: the targets of all of them are decided together. The result may contain more NodeMaintenances than that.
func findNeighbours(ctx context.Context, s *scope) error {
	s.drainedBy = map[string][]*corev1.Node{}
	asked, seen := selectedSet(s).Union(nodesInStatus(s.before)), sets.New(s.maintenance.Name)
	for next := sets.List(asked); len(next) > 0; {
		found, err := workload.MaintenancesOf(ctx, s.client, next...)
		if err != nil {
			return err
		}
		next = nil
		for i := range found {
			other := &found[i]
			if seen.Has(other.Name) {
				continue
			}
			seen.Insert(other.Name)
			s.others = append(s.others, *other)
			if !planinput.Drains(other) {
				continue
			}
			if s.drainedBy[other.Name], err = selectedNodes(ctx, s.client, other); err != nil {
				return err
			}
			for _, node := range s.drainedBy[other.Name] {
				if !asked.Has(node.Name) {
					asked.Insert(node.Name)
					next = append(next, node.Name)
				}
			}
		}
	}
	return nil
}

// selectedNodes returns the Nodes that a NodeMaintenance selects. It omits a Node whose UID differs from the recorded one.
func selectedNodes(ctx context.Context, reader client.Reader, m *v1alpha1.NodeMaintenance) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	if names, only := nodeselection.Names(m); only {
		for _, name := range names {
			node := &corev1.Node{}
			if err := reader.Get(ctx, types.NamespacedName{Name: name}, node); client.IgnoreNotFound(err) != nil {
				return nil, errors.Wrapf(err, "getting Node %s", name)
			} else if err == nil && nodeselection.CouldSelect(m, node) {
				nodes = append(nodes, node)
			}
		}
		return nodes, nil
	}
	all := &corev1.NodeList{}
	if err := reader.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil { // only the selected Nodes are copied
		return nil, errors.Wrap(err, "listing Nodes")
	}
	selected := nodeselection.Of(m)
	for i := range all.Items {
		if selected(&all.Items[i]) {
			nodes = append(nodes, all.Items[i].DeepCopy())
		}
	}
	return nodes, nil
}

// uncordon restores the Nodes, except those that another NodeMaintenance still cordons.
func (r *Reconciler) uncordon(ctx context.Context, s *scope) (bool, error) {
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	for _, node := range s.nodes {
		group.Go(func() error { return r.uncordonNode(ctx, s, node, cordon.RestoresUnconditionally(s.maintenance)) })
	}
	err := group.Wait()
	return err == nil, err
}

func (r *Reconciler) uncordonNode(ctx context.Context, s *scope, node *corev1.Node, unconditionally bool) error {
	node = r.latest(s, node)
	changed, restored := node.DeepCopy(), false
	if !anotherOn(node, s, cordon.Holds) {
		restored = cordon.Restore(changed, unconditionally)
	}
	if !anotherOn(node, s, cordon.Excludes) {
		restored = cordon.Include(changed) || restored
	}
	if !restored {
		return nil
	}
	if err := workload.PatchNode(ctx, s.client, node, changed); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "uncordoning Node %s", node.Name)
	}
	r.recordWritten(s, changed)
	ctrl.LoggerFrom(ctx).Info("Restored Node", "Node", klog.KObj(node), "unschedulable", changed.Spec.Unschedulable)
	return nil
}

// anotherOn reports whether another NodeMaintenance that selects the Node satisfies the predicate does.
func anotherOn(node *corev1.Node, s *scope, does func(*v1alpha1.NodeMaintenance) bool) bool {
	return slices.ContainsFunc(s.others, func(other v1alpha1.NodeMaintenance) bool {
		return does(&other) && nodeselection.Selects(&other, node)
	})
}

// latest returns the later version of a Node: the observed one or the one that this manager has written. It is read-only.
func (r *Reconciler) latest(s *scope, observed *corev1.Node) *corev1.Node {
	latest, _ := r.written.Latest(s.request.Cluster, observed)
	return latest
}

func (r *Reconciler) recordWritten(s *scope, node *corev1.Node) {
	if trimmed, err := workload.TrimNode(node.DeepCopy()); err == nil {
		if kept, ok := trimmed.(*corev1.Node); ok {
			r.written.RecordWritten(s.request.Cluster, kept)
		}
	}
}

// enqueue maps a Change to NodeMaintenances.
func (r *Reconciler) enqueue(ctx context.Context, queue workload.Queue, change workload.Change) {
	var keys []types.NamespacedName
	switch {
	case change.Pod != nil:
		keys = r.maintenancesOf(ctx, change.Cluster, change.Pod.Spec.NodeName, nil)
	case change.Node != nil:
		keys = r.maintenancesOf(ctx, change.Cluster, *change.Node, nil)
	case change.RuleInputs:
		keys = r.draining(ctx, change.Cluster)
	}
	for _, key := range keys {
		queue.Add(workload.Request{Cluster: change.Cluster, Object: key})
	}
}

// maintenancesOf returns the NodeMaintenances that select or have selected a Node, and those whose selection is in doubt: the Node may
// show that they do not select all Nodes. If node is nil, maintenancesOf gets it by name.
func (r *Reconciler) maintenancesOf(ctx context.Context, cluster types.NamespacedName, name string, node *corev1.Node) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the initial lists of the next connection enqueue all
	}
	if node == nil {
		node = &corev1.Node{}
		if remoteClient.Get(ctx, types.NamespacedName{Name: name}, node) != nil {
			node.Name = name // the labels of a Node that no longer exists are not known
		}
	}
	maintenances, err := workload.MaintenancesOf(ctx, remoteClient, name)
	if err != nil {
		return nil // same
	}
	return keysWhere(maintenances, func(m *v1alpha1.NodeMaintenance) bool {
		if names, only := nodeselection.Names(m); only {
			return slices.Contains(names, name) || nodeselection.IsImplausible(m)
		}
		return nodeselection.Selects(m, node) || nodeselection.HasNodeStatus(m, name) || nodeselection.IsImplausible(m)
	})
}

// draining returns all maintenances in stage Drain.
func (r *Reconciler) draining(ctx context.Context, cluster types.NamespacedName) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the initial lists of the next connection enqueue all
	}
	all := &v1alpha1.NodeMaintenanceList{}
	if err := remoteClient.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil // same
	}
	return keysWhere(all.Items, func(m *v1alpha1.NodeMaintenance) bool { return m.Spec.Stage == v1alpha1.StageDrain })
}

func keysWhere(maintenances []v1alpha1.NodeMaintenance, condition func(*v1alpha1.NodeMaintenance) bool) []types.NamespacedName {
	var keys []types.NamespacedName
	for i := range maintenances {
		if condition(&maintenances[i]) {
			keys = append(keys, client.ObjectKeyFromObject(&maintenances[i]))
		}
	}
	return keys
}

// itselfAndNeighbours maps a NodeMaintenance to itself and to those that share Nodes with it, since its progress affects their targets and
// whether they may restore the Nodes.
func (r *Reconciler) itselfAndNeighbours(cluster types.NamespacedName) func(context.Context, *v1alpha1.NodeMaintenance) []types.NamespacedName {
	return func(ctx context.Context, m *v1alpha1.NodeMaintenance) []types.NamespacedName {
		itself := []types.NamespacedName{client.ObjectKeyFromObject(m)}
		remoteClient, err := r.Clusters.Client(ctx, cluster)
		if err != nil {
			return itself
		}
		nodes, err := selectedNodes(ctx, remoteClient, m)
		if err != nil {
			return itself
		}
		names := make([]string, 0, len(nodes))
		for _, node := range nodes {
			names = append(names, node.Name)
		}
		maintenances, err := workload.MaintenancesOf(ctx, remoteClient, names...)
		if err != nil {
			return itself
		}
		return append(itself, keysWhere(maintenances, func(other *v1alpha1.NodeMaintenance) bool {
			return other.Name != m.Name && slices.ContainsFunc(nodes, nodeselection.Of(other))
		})...)
	}
}

// nodeChanged passes the Node events that can affect a NodeMaintenance. It drops the others, such as kubelet heartbeats.
type nodeChanged struct {
	predicate.TypedFuncs[*corev1.Node]
}

// Update implements predicate.TypedPredicate.
func (nodeChanged) Update(e event.TypedUpdateEvent[*corev1.Node]) bool {
	before, after := e.ObjectOld, e.ObjectNew
	return before.Spec.Unschedulable != after.Spec.Unschedulable ||
		rules.Unreachable(before) != rules.Unreachable(after) ||
		!apiequality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		before.Annotations[v1alpha1.NodeOriginAnnotation] != after.Annotations[v1alpha1.NodeOriginAnnotation] ||
		!nodecondition.SameMaintenanceConditions(before.Status.Conditions, after.Status.Conditions) ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp)
}
