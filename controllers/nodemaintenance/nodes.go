package nodemaintenance

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/jsonpatch"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodecondition"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// selectNodes finds the Nodes of this NodeMaintenance and the NodeMaintenances that share Nodes with it.
func (r *Reconciler) selectNodes(ctx context.Context, s *scope) (err error) {
	if s.nodes, err = selectedNodes(ctx, s.client, s.maintenance); err != nil {
		return err
	}
	for i := range s.nodes {
		s.nodes[i] = r.latest(s, s.nodes[i])
	}
	if err := findNeighbors(ctx, s); err != nil {
		return err
	}
	return r.findSuspended(ctx, s)
}

// findSuspended finds those of the other NodeMaintenances for which nothing is done.
func (r *Reconciler) findSuspended(ctx context.Context, s *scope) error {
	suspension := r.Maintenances.Suspension(ctx, s.request.Cluster)
	s.suspends = sets.New[string]()
	for i := range s.others {
		if other := &s.others[i]; other.Drains() && suspension.Of(other) {
			s.suspends.Insert(other.Name)
		}
	}
	return suspension.Err()
}

// findNeighbors finds the NodeMaintenances that share Nodes with this one and, transitively through those in stage Drain, all that share
// Nodes with them: the targets of all of them are decided together. The result may contain more NodeMaintenances than that.
func findNeighbors(ctx context.Context, s *scope) error {
	s.drainedBy = map[string][]*corev1.Node{}
	asked, seen := sets.New(nodeNames(s.nodes)...).Union(nodesInStatus(s.before)), sets.New(s.maintenance.Name)
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
			if !other.Drains() {
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

func nodeNames(nodes []*corev1.Node) []string {
	names := make([]string, 0, len(nodes))
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	return names
}

// selectedNodes returns the Nodes that a NodeMaintenance selects. It omits a Node whose UID differs from the recorded one.
func selectedNodes(ctx context.Context, reader client.Reader, m *v1alpha1.NodeMaintenance) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	if names, byName := nodeselection.Names(m); byName {
		for _, name := range names {
			node := &corev1.Node{}
			if err := reader.Get(ctx, types.NamespacedName{Name: name}, node); err != nil && !answers.DoesNotExist(err) {
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

// unreadRetry is how often what waits for a NodeMaintenance that cannot be decoded is tried again. It is not known which Nodes it selects.
const unreadRetry = 20 * time.Second

// holdsNodes reports whether Nodes are not restored, and keep their conditions, because a NodeMaintenance that cannot be decoded may select
// them. If the NodeMaintenance of s is deleted meanwhile, the Sweeper restores its Nodes.
func (r *Reconciler) holdsNodes(s *scope) bool {
	if len(r.Clusters.SetAside(s.request.Cluster, "NodeMaintenance")) == 0 {
		return false
	}
	s.requeueBy(s.now.Add(unreadRetry))
	return true
}

// uncordon restores the Nodes, except those that another NodeMaintenance still cordons. A Node that became schedulable unconditionally is
// not uncordoned again, because another actor may have cordoned it since: after a refusal, nodeStatuses lists the Nodes that must still
// become schedulable.
func (r *Reconciler) uncordon(ctx context.Context, s *scope) (bool, error) {
	unconditionally := cordon.RestoresUnconditionally(s.maintenance)
	if r.holdsNodes(s) {
		s.uncordonsAgain = unconditionally && slices.ContainsFunc(s.nodes, func(node *corev1.Node) bool { return node.Spec.Unschedulable })
		return true, nil
	}
	isRepeated, left := meta.IsStatusConditionTrue(s.before.Status.Conditions, v1alpha1.NodeMaintenanceRestoreFailed), nodesInStatus(s.before)
	uncordons := func(node *corev1.Node) bool { return unconditionally && (!isRepeated || left.Has(node.Name)) }
	failed, err := r.restoreNodes(ctx, s, s.nodes, func(node *corev1.Node) func(*corev1.Node) bool {
		if uncordons(node) {
			return cordon.Uncordon
		}
		return cordon.Restore
	})
	for i, node := range s.nodes {
		failed[i] = failed[i] && uncordons(node)
	}
	if s.uncordonsAgain = slices.Contains(failed, true); s.uncordonsAgain {
		listLeft(s, failed)
	}
	return err == nil, err
}

// restoreNodes restores Nodes as the result of restoreOf does, and reports which of them it could not restore. A Node that cannot be
// restored, because its request is refused or gets no answer, does not delay the others.
func (r *Reconciler) restoreNodes(ctx context.Context, s *scope, nodes []*corev1.Node,
	restoreOf func(*corev1.Node) func(*corev1.Node) (changed bool),
) (failed []bool, _ error) {
	failed = make([]bool, len(nodes))
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	for i, node := range nodes {
		restore := restoreOf(node)
		group.Go(func() error {
			err := r.uncordonNode(ctx, s, node, restore)
			failed[i] = err != nil
			return s.collect(ctx, "restore Node "+node.Name, err)
		})
	}
	return failed, group.Wait() //nolint:wrapcheck // uncordonNode wraps it
}

// listLeft removes the selected Nodes from nodeStatuses, except those that must still become schedulable.
func listLeft(s *scope, left []bool) {
	m, selected := s.maintenance, sets.New(nodeNames(s.nodes)...)
	m.Status.NodeStatuses = slices.DeleteFunc(slices.Clone(m.Status.NodeStatuses), func(status v1alpha1.NodeMaintenanceNodeStatus) bool {
		return selected.Has(status.NodeRef.Name)
	})
	for i, node := range s.nodes {
		if left[i] && len(m.Status.NodeStatuses) < progress.MaxNodes {
			m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: node.Name}})
		}
	}
	slices.SortFunc(m.Status.NodeStatuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return cmp.Compare(a.NodeRef.Name, b.NodeRef.Name) })
}

func (r *Reconciler) uncordonNode(ctx context.Context, s *scope, node *corev1.Node, restore func(*corev1.Node) (changed bool)) error {
	node = r.latest(s, node)
	changed, restored := node.DeepCopy(), false
	others, err := r.othersNow(ctx, s, node)
	if err != nil {
		return err
	}
	if kept, err := r.isKeptCordoned(ctx, s, others); err != nil || kept {
		return err
	}
	if !slices.ContainsFunc(others, cordon.Holds) {
		restored = restore(changed)
	}
	if !slices.ContainsFunc(others, cordon.Excludes) {
		restored = cordon.Include(changed) || restored
	}
	if !restored {
		return nil
	}
	if err := jsonpatch.Node(ctx, s.client, node, changed); err != nil {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "restoring Node %s", node.Name)
	}
	r.recordWritten(s, changed)
	ctrl.LoggerFrom(ctx).Info("Restored Node", "Node", klog.KObj(node), "unschedulable", changed.Spec.Unschedulable)
	return nil
}

// othersOn returns the other NodeMaintenances that select a Node.
func (s *scope) othersOn(node *corev1.Node) []*v1alpha1.NodeMaintenance {
	var others []*v1alpha1.NodeMaintenance
	for i := range s.others {
		if other := &s.others[i]; nodeselection.Selects(other, node) {
			others = append(others, other)
		}
	}
	return others
}

// othersNow is readOthers, for a Node that is to be restored: earlier requests of the reconciliation may have taken long, because an
// admission webhook hangs for example. It returns an error if the Machine was deleted or paused meanwhile: the next reconciliation leaves
// its Node cordoned.
func (r *Reconciler) othersNow(ctx context.Context, s *scope, node *corev1.Node) ([]*v1alpha1.NodeMaintenance, error) {
	if s.owner != nil && !s.owner.keepsCordon {
		machine, keepsCordon, err := r.machineOf(ctx, s, s.owner.key)
		if err != nil || keepsCordon || machine != nil && machinedrain.HasPauseAnnotation(machine) {
			return nil, errors.Wrapf(cmp.Or(err, errChangedMeanwhile), "restoring Node %s", node.Name)
		}
	}
	return r.readOthers(ctx, s, node)
}

// readOthers is othersOn, with the NodeMaintenances that are in the cache now. It fails as workload.Clusters.Client does, for example if
// the Cluster was paused since the reconciliation began.
func (r *Reconciler) readOthers(ctx context.Context, s *scope, node *corev1.Node) ([]*v1alpha1.NodeMaintenance, error) {
	cached, err := r.Clusters.Client(ctx, s.request.Cluster)
	if err != nil {
		return nil, err
	}
	maintenances, err := workload.MaintenancesOf(ctx, cached, node.Name)
	isItself := func(m v1alpha1.NodeMaintenance) bool {
		return m.Name == s.maintenance.Name && m.UID == s.maintenance.UID
	}
	now := scope{others: slices.DeleteFunc(maintenances, isItself)}
	return now.othersOn(node), err
}

// errChangedMeanwhile means that a Machine was deleted or paused during a reconciliation that was about to restore its Node.
var errChangedMeanwhile = errors.New("the Machine was deleted or paused meanwhile")

// latest returns the later version of a Node: the observed one or the one that this manager has written. It is read-only.
func (r *Reconciler) latest(s *scope, observed *corev1.Node) *corev1.Node {
	latest, _ := r.written.Latest(s.request.Cluster, observed)
	return latest
}

func (r *Reconciler) recordWritten(s *scope, node *corev1.Node) {
	r.written.RecordWritten(s.request.Cluster, node)
}

// enqueue maps a Change to NodeMaintenances.
func (r *Reconciler) enqueue(ctx context.Context, queue workload.Queue, change workload.Change) {
	var keys []types.NamespacedName
	switch change.Type {
	case workload.PodChanged, workload.PodDeleted, workload.PodsListed, workload.DrainContinued, workload.PodsWaiting:
		keys = r.maintenancesOfNamed(ctx, change.Cluster, change.Node)
	case workload.AllPodsAffected:
		keys = r.draining(ctx, change.Cluster)
	case workload.WatchesAdded, workload.Resumed: // some may have been deleted without an event
		keys = r.remembered(change.Cluster)
	default: // affects no NodeMaintenance
	}
	for _, key := range keys {
		queue.Add(workload.Request{Cluster: change.Cluster, Object: key})
	}
}

// remembered returns the NodeMaintenances of a workload cluster that this process has read and not found to be deleted: something may be
// kept in memory of each.
func (r *Reconciler) remembered(cluster types.NamespacedName) (keys []types.NamespacedName) {
	for key := range r.known.Range {
		if request, is := key.(workload.Request); is && request.Cluster == cluster {
			keys = append(keys, request.Object)
		}
	}
	return keys
}

// forgetDeleted deletes all state about the NodeMaintenances of a workload cluster whose Cluster no longer exists.
func (r *Reconciler) forgetDeleted(change workload.Change) {
	if change.Type != workload.ClusterDeleted {
		return
	}
	for _, object := range r.remembered(change.Cluster) {
		r.known.Delete(workload.Request{Cluster: change.Cluster, Object: object})
	}
	of := func(request workload.Request) bool { return request.Cluster == change.Cluster }
	r.statuses.RemoveAll(of)
	r.created.removeAll(of)
	r.Recorder.ForgetCluster(change.Cluster)
}

// maintenancesOfNamed returns the NodeMaintenances of a Node, see maintenancesOf. The labels of a Node that no longer exists, or is not
// observed yet, are not known.
func (r *Reconciler) maintenancesOfNamed(ctx context.Context, cluster types.NamespacedName, name string) []types.NamespacedName {
	node := &corev1.Node{}
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil || !workload.ObservesNodes(remoteClient) || remoteClient.Get(ctx, types.NamespacedName{Name: name}, node) != nil {
		node.Name = name
	}
	return r.maintenancesOf(ctx, cluster, node)
}

// maintenancesOf returns the NodeMaintenances that select or have selected a Node, and those with an implausible selection, which becomes
// plausible if they do not select this Node.
func (r *Reconciler) maintenancesOf(ctx context.Context, cluster types.NamespacedName, node *corev1.Node) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the initial lists of the next connection enqueue all
	}
	maintenances, err := workload.MaintenancesOf(ctx, remoteClient, node.Name)
	if err != nil {
		logMapError(ctx, err, cluster)
		return nil
	}
	return keysWhere(maintenances, func(m *v1alpha1.NodeMaintenance) bool {
		if names, byName := nodeselection.Names(m); byName {
			return slices.Contains(names, node.Name) || nodeselection.IsImplausible(m)
		}
		return nodeselection.Selects(m, node) || nodeselection.HasNodeStatus(m, node.Name) || nodeselection.IsImplausible(m)
	})
}

// draining returns all NodeMaintenances that drain Nodes.
func (r *Reconciler) draining(ctx context.Context, cluster types.NamespacedName) []types.NamespacedName {
	remoteClient, err := r.Clusters.Client(ctx, cluster)
	if err != nil {
		return nil // the initial lists of the next connection enqueue all
	}
	all := &v1alpha1.NodeMaintenanceList{}
	if err := remoteClient.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		logMapError(ctx, errors.Wrap(err, "listing NodeMaintenances"), cluster)
		return nil
	}
	return keysWhere(all.Items, (*v1alpha1.NodeMaintenance).Drains)
}

// logMapError logs that an event could not be mapped to NodeMaintenances. They are reconciled at their next event.
func logMapError(ctx context.Context, err error, cluster types.NamespacedName) {
	ctrl.LoggerFrom(ctx).Error(err, "Failed to find the NodeMaintenances to reconcile", "Cluster", klog.KRef(cluster.Namespace, cluster.Name))
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

// itselfAndNeighbors maps a NodeMaintenance to itself and to those that share Nodes with it, since its progress affects their targets and
// whether they may restore the Nodes. Until the Nodes are observed it reads none: a request would delay all events of the workload cluster.
// Once they are, all NodeMaintenances have an event.
func (r *Reconciler) itselfAndNeighbors(cluster types.NamespacedName) func(context.Context, *v1alpha1.NodeMaintenance) []types.NamespacedName {
	return func(ctx context.Context, m *v1alpha1.NodeMaintenance) []types.NamespacedName {
		itself := []types.NamespacedName{client.ObjectKeyFromObject(m)}
		remoteClient, err := r.Clusters.Client(ctx, cluster)
		if err != nil || !workload.ObservesNodes(remoteClient) {
			return itself
		}
		nodes, err := selectedNodes(ctx, remoteClient, m)
		if err != nil {
			logMapError(ctx, err, cluster)
			return itself
		}
		maintenances, err := workload.MaintenancesOf(ctx, remoteClient, nodeNames(nodes)...)
		if err != nil {
			logMapError(ctx, err, cluster)
			return itself
		}
		return append(itself, keysWhere(maintenances, func(other *v1alpha1.NodeMaintenance) bool {
			return other.Name != m.Name && slices.ContainsFunc(nodes, nodeselection.Of(other))
		})...)
	}
}

// nodeChanged passes the Node events that can affect a NodeMaintenance. It drops the others, such as kubelet heartbeats, and the first
// list: when it has arrived, all NodeMaintenances are reconciled.
type nodeChanged struct {
	predicate.TypedFuncs[*corev1.Node]
}

// Create implements predicate.TypedPredicate.
func (nodeChanged) Create(e event.TypedCreateEvent[*corev1.Node]) bool { return !e.IsInInitialList }

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
