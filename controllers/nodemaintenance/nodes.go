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
	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/lifecycle"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/selection"
)

// selectNodes finds the Nodes of this maintenance, and the maintenances that it shares Nodes with.
func (r *Reconciler) selectNodes(ctx context.Context, s *scope) (bool, error) {
	var err error
	if s.nodes, err = selectedNodes(ctx, s.client, s.maintenance); err != nil {
		return false, err
	}
	for i := range s.nodes {
		s.nodes[i] = r.written.latest(s.request.Cluster, s.nodes[i])
	}
	err = findNeighbours(ctx, s)
	return err == nil, err
}

// findNeighbours finds the maintenances that have to do with Nodes of this one, and those that drain Nodes of such as drain: who may
// go is decided for all of them together. It may find others as well.
func findNeighbours(ctx context.Context, s *scope) error {
	s.drainedBy = map[string][]*corev1.Node{}
	asked, seen := selectedSet(s).Union(mentionedNodes(s.before)), sets.New(s.maintenance.Name)
	for next := sets.List(asked); len(next) > 0; {
		found, err := remote.MaintenancesOf(ctx, s.client, next...)
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
			if !drains(other) {
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

// drains says whether a maintenance has a say in who may leave its Nodes.
func drains(m *v1alpha1.NodeMaintenance) bool {
	return m.Spec.Stage == v1alpha1.StageDrain && m.DeletionTimestamp.IsZero()
}

// selectedNodes returns the Nodes that a maintenance selects. A Node of the recorded name with another UID isn't the one
// that is meant, and isn't selected.
func selectedNodes(ctx context.Context, reader client.Reader, m *v1alpha1.NodeMaintenance) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	if names, only := selection.Names(m); only {
		for _, name := range names {
			node := &corev1.Node{}
			if err := reader.Get(ctx, types.NamespacedName{Name: name}, node); client.IgnoreNotFound(err) != nil {
				return nil, errors.Wrapf(err, "getting Node %s", name)
			} else if err == nil && selection.Means(m, node) {
				nodes = append(nodes, node)
			}
		}
		return nodes, nil
	}
	all := &corev1.NodeList{}
	if err := reader.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil { // of many Nodes, few may be selected
		return nil, errors.Wrap(err, "listing Nodes")
	}
	selected := selection.Of(m)
	for i := range all.Items {
		if selected(&all.Items[i]) {
			nodes = append(nodes, all.Items[i].DeepCopy())
		}
	}
	return nodes, nil
}

// uncordon leaves the Nodes as they were found, unless another maintenance still cordons them.
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
	node = r.written.latest(s.request.Cluster, node)
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
	if err := remote.PatchNode(ctx, s.client, node, changed); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "uncordoning Node %s", node.Name)
	}
	r.written.note(s.request.Cluster, changed)
	ctrl.LoggerFrom(ctx).Info("Left Node as it was found", "Node", klog.KObj(node), "unschedulable", changed.Spec.Unschedulable)
	return nil
}

// anotherOn says whether another maintenance that selects the Node does something there.
func anotherOn(node *corev1.Node, s *scope, does func(*v1alpha1.NodeMaintenance) bool) bool {
	return slices.ContainsFunc(s.others, func(other v1alpha1.NodeMaintenance) bool {
		return does(&other) && selection.Selects(&other, node)
	})
}

// enqueue maps what a drain watch sees to NodeMaintenances.
func (r *Reconciler) enqueue(ctx context.Context, queue remote.Queue, change remote.Change) {
	var keys []types.NamespacedName
	switch {
	case change.Pod != nil:
		keys = r.maintenancesOf(ctx, change.Cluster, change.Pod.Spec.NodeName, nil)
	case change.Node != nil:
		keys = r.maintenancesOf(ctx, change.Cluster, *change.Node, nil)
	case change.Surroundings:
		keys = r.draining(ctx, change.Cluster)
	}
	for _, key := range keys {
		queue.Add(remote.Request{Cluster: change.Cluster, Object: key})
	}
}

// maintenancesOf returns the maintenances that select a Node, or have selected it, and those of whom the Node may show that they
// don't select all Nodes. Where node is nil it is looked up.
func (r *Reconciler) maintenancesOf(ctx context.Context, cluster types.NamespacedName, name string, node *corev1.Node) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the next connection lists them all
	}
	if node == nil {
		node = &corev1.Node{}
		if remoteClient.Get(ctx, types.NamespacedName{Name: name}, node) != nil {
			node.Name = name // by name is all that can be said of a Node that is gone
		}
	}
	maintenances, err := remote.MaintenancesOf(ctx, remoteClient, name)
	if err != nil {
		return nil // likewise
	}
	return keysWhere(maintenances, func(m *v1alpha1.NodeMaintenance) bool {
		if names, only := selection.Names(m); only {
			return slices.Contains(names, name) || selection.Doubted(m)
		}
		return selection.Selects(m, node) || selection.Mentions(m, name) || selection.Doubted(m)
	})
}

// draining returns all maintenances in stage Drain.
func (r *Reconciler) draining(ctx context.Context, cluster types.NamespacedName) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the next connection lists them all
	}
	all := &v1alpha1.NodeMaintenanceList{}
	if err := remoteClient.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil // likewise
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

// itselfAndNeighbours maps a NodeMaintenance to itself and to those that share Nodes with it: what one does changes what the
// others may do.
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
		maintenances, err := remote.MaintenancesOf(ctx, remoteClient, names...)
		if err != nil {
			return itself
		}
		return append(itself, keysWhere(maintenances, func(other *v1alpha1.NodeMaintenance) bool {
			return other.Name != m.Name && slices.ContainsFunc(nodes, selection.Of(other))
		})...)
	}
}

// nodeMatters passes the events of Nodes that can change what a maintenance does. Kubelets write much else.
type nodeMatters struct {
	predicate.TypedFuncs[*corev1.Node]
}

// Update implements predicate.TypedPredicate.
func (nodeMatters) Update(e event.TypedUpdateEvent[*corev1.Node]) bool {
	before, after := e.ObjectOld, e.ObjectNew
	return before.Spec.Unschedulable != after.Spec.Unschedulable ||
		rules.Unreachable(before) != rules.Unreachable(after) ||
		!apiequality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		before.Annotations[v1alpha1.NodeOriginAnnotation] != after.Annotations[v1alpha1.NodeOriginAnnotation] ||
		!lifecycle.Same(before.Status.Conditions, after.Status.Conditions) ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp)
}
