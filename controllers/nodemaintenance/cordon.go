package nodemaintenance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
)

// fieldManager is the field manager that the API server records for this manager. The API server derives it from the user agent.
const fieldManager = "cluster-api-node-maintenance"

// refusedRetry is the delay before retrying to cordon a Node that the API server refused to cordon.
const refusedRetry = 5 * time.Second

// cordon makes the selected Nodes unschedulable and keeps them so. A Node that the API server refuses to patch does not delay the others:
// no Pod is evicted from it, the status names it, and cordon retries after refusedRetry.
func (r *Reconciler) cordon(ctx context.Context, s *scope) (bool, error) {
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	refused := make([]error, len(s.nodes))
	for i := range s.nodes {
		if applyCordon(s, s.nodes[i].DeepCopy()) {
			group.Go(func() error {
				err := r.cordonNode(ctx, s, &s.nodes[i])
				if isAnswer(err) {
					refused[i], err = err, nil
				}
				return err
			})
		}
	}
	err := group.Wait()
	s.refused = map[string]error{}
	for i, err := range refused {
		if err != nil {
			ctrl.LoggerFrom(ctx).Info("Failed to cordon Node", "Node", klog.KObj(s.nodes[i]), "err", err.Error())
			s.refused[s.nodes[i].Name] = errors.Cause(err)
			s.requeueBy(s.now.Add(refusedRetry))
		}
	}
	return err == nil, err
}

// isAnswer reports whether an error is the API server's answer to this particular request. Missing answers, timeouts and overload are not.
func isAnswer(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests:
		return false
	default:
		return true
	}
}

// cordonRefused returns the message of the condition Cordoned if Nodes could not be cordoned.
func (s *scope) cordonRefused() string {
	names := sets.List(sets.KeySet(s.refused))
	message := "Node " + names[0] + " cannot be cordoned: " + progress.Describe(s.refused[names[0]])
	if more := len(names) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more Nodes)", more)
	}
	return message
}

// applyCordon cordons the Node in memory and, if this NodeMaintenance says so, excludes it from load balancers. It reports whether the Node
// has changed.
func applyCordon(s *scope, node *corev1.Node) (changed bool) {
	changed = cordon.Apply(node)
	if cordon.Excludes(s.maintenance) {
		changed = cordon.Exclude(node) || changed
	}
	return changed
}

// cordonNode gets the Node from the cache again before it patches it, since other components write Nodes frequently. After a conflict, it
// retries once with the Node from the API server.
func (r *Reconciler) cordonNode(ctx context.Context, s *scope, seen **corev1.Node) error {
	node := &corev1.Node{}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(*seen), node); err != nil || node.UID != (*seen).UID {
		return errors.Wrapf(client.IgnoreNotFound(err), "getting Node %s", (*seen).Name)
	}
	err := r.writeCordon(ctx, s, seen, r.latest(s, node))
	if !apierrors.IsConflict(err) {
		return err
	}
	live, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return err
	}
	node = &corev1.Node{}
	if err := live.Get(ctx, client.ObjectKeyFromObject(*seen), node); err != nil || node.UID != (*seen).UID {
		return errors.Wrapf(client.IgnoreNotFound(err), "getting Node %s", (*seen).Name)
	}
	return r.writeCordon(ctx, s, seen, node)
}

// writeCordon patches the Node as applyMark requires. It writes an event if another actor repeatedly makes the Node schedulable.
func (r *Reconciler) writeCordon(ctx context.Context, s *scope, seen **corev1.Node, node *corev1.Node) error {
	changed := node.DeepCopy()
	if !applyCordon(s, changed) {
		*seen = node
		return nil
	}
	flipped, fighter := cordon.WasUncordoned(node), ""
	if flipped && r.conflicts.due(s, node) { // read before the patch, which makes this manager the owner of the field
		var err error
		if fighter, err = r.uncordonedBy(ctx, s, node); err != nil {
			return err
		}
	}
	if err := workload.PatchNode(ctx, s.client, node, changed); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "cordoning Node %s", node.Name)
	}
	*seen = changed
	r.recordWritten(s, changed)
	ctrl.LoggerFrom(ctx).Info("Cordoned Node", "Node", klog.KObj(node), "again", flipped)
	if flipped && r.conflicts.add(s, node) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventCordonConflict,
			fmt.Sprintf("%s keeps making Node %s schedulable, which is under maintenance", fighter, node.Name))
	}
	return nil
}

// uncordonedBy names the actor that makes a Node schedulable, from the managedFields, which cached Nodes do not contain.
func (r *Reconciler) uncordonedBy(ctx context.Context, s *scope, node *corev1.Node) (string, error) {
	live, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return "", err
	}
	present := &corev1.Node{}
	if err := live.Get(ctx, client.ObjectKeyFromObject(node), present); client.IgnoreNotFound(err) != nil {
		return "", errors.Wrapf(err, "getting Node %s", node.Name)
	}
	if name := cordon.UncordonedBy(present.ManagedFields, fieldManager); name != "" {
		return fmt.Sprintf("Field manager %q", name), nil
	}
	return "Somebody (the Node's managedFields don't say who)", nil
}

// conflicts counts, for each workload cluster, how often other actors make cordoned Nodes schedulable.
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
