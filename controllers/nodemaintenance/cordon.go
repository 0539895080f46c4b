package nodemaintenance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
)

// fieldManager is whom the API server records as the writer of what this manager writes: it takes that from the user agent.
const fieldManager = "cluster-api-node-maintenance"

// cordon keeps the selected Nodes unschedulable. A Node that can't be written now doesn't keep the others waiting.
func (r *Reconciler) cordon(ctx context.Context, s *scope) (bool, error) {
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	for i := range s.nodes {
		if applyMark(s, s.nodes[i].DeepCopy()) {
			group.Go(func() error { return r.cordonNode(ctx, s, &s.nodes[i]) })
		}
	}
	err := group.Wait()
	return err == nil, err
}

// applyMark makes the Node what this maintenance has it be, and says whether that changes it.
func applyMark(s *scope, node *corev1.Node) (changed bool) {
	changed = cordon.Apply(node)
	if cordon.Excludes(s.maintenance) {
		changed = cordon.Exclude(node) || changed
	}
	return changed
}

// cordonNode looks at the Node once more before it writes: others write Nodes all the time, and many may have been before
// this one.
func (r *Reconciler) cordonNode(ctx context.Context, s *scope, seen **corev1.Node) error {
	node := &corev1.Node{}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(*seen), node); err != nil || node.UID != (*seen).UID {
		return errors.Wrapf(client.IgnoreNotFound(err), "getting Node %s", (*seen).Name)
	}
	node = r.written.latest(s.request.Cluster, node)
	changed := node.DeepCopy()
	if !applyMark(s, changed) {
		*seen = node
		return nil
	}
	flipped, fighter := cordon.Flipped(node), ""
	if flipped && r.conflicts.due(s, node) { // our own write makes us the owner of the field
		var err error
		if fighter, err = r.fighter(ctx, s, node); err != nil {
			return err
		}
	}
	if err := s.client.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "cordoning Node %s", node.Name)
	}
	*seen = changed
	r.written.note(s.request.Cluster, changed)
	ctrl.LoggerFrom(ctx).Info("Cordoned Node", "Node", klog.KObj(node), "again", flipped)
	if flipped && r.conflicts.add(s, node) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventCordonConflict,
			fmt.Sprintf("%s keeps making Node %s schedulable, which is under maintenance", fighter, node.Name))
	}
	return nil
}

// fighter names who makes a Node schedulable. Cached Nodes don't tell.
func (r *Reconciler) fighter(ctx context.Context, s *scope, node *corev1.Node) (string, error) {
	live, err := r.Clusters.Live(ctx, s.request.Cluster)
	if err != nil {
		return "", err
	}
	present := &corev1.Node{}
	if err := live.Get(ctx, client.ObjectKeyFromObject(node), present); client.IgnoreNotFound(err) != nil {
		return "", errors.Wrapf(err, "getting Node %s", node.Name)
	}
	if name := cordon.Fighter(present.ManagedFields, fieldManager); name != "" {
		return fmt.Sprintf("Field manager %q", name), nil
	}
	return "Somebody (the Node's managedFields don't say who)", nil
}

// conflicts counts, for each workload cluster, how often Nodes are made schedulable from outside.
type conflicts struct {
	mu        sync.Mutex
	byCluster map[types.NamespacedName]*cordon.Conflicts
}

func (c *conflicts) due(s *scope, node *corev1.Node) bool {
	return c.with(s, func(counted *cordon.Conflicts, now time.Time) bool {
		return counted.Due(string(node.UID), s.maintenance.Name, now)
	})
}

func (c *conflicts) add(s *scope, node *corev1.Node) bool {
	return c.with(s, func(counted *cordon.Conflicts, now time.Time) bool {
		return counted.Add(string(node.UID), s.maintenance.Name, now)
	})
}

func (c *conflicts) with(s *scope, do func(counted *cordon.Conflicts, now time.Time) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byCluster == nil {
		c.byCluster = map[types.NamespacedName]*cordon.Conflicts{}
	}
	if c.byCluster[s.request.Cluster] == nil {
		c.byCluster[s.request.Cluster] = &cordon.Conflicts{}
	}
	return do(c.byCluster[s.request.Cluster], s.now)
}
