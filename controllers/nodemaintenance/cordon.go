package nodemaintenance

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/jsonpatch"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// fieldManager is the field manager that the API server records for this manager. The API server derives it from the user agent.
const fieldManager = "cluster-api-node-maintenance"

// refusedRetry is the delay before retrying a write that the API server refused, such as the cordon of a Node.
const refusedRetry = 5 * time.Second

// cordon makes the selected Nodes unschedulable and keeps them so. A Node whose request is refused or gets no answer does not delay the
// others: no Evacuation is created for its Pods, the status names it, and cordon retries after refusedRetry. Evacuations that exist
// continue, because another actor has uncordoned the Node: see R72.
func (r *Reconciler) cordon(ctx context.Context, s *scope) (bool, error) {
	var group errgroup.Group
	group.SetLimit(parallelWrites)
	refusals := make([]error, len(s.nodes))
	for i, node := range s.nodes {
		if !applyCordon(s, node.DeepCopy()) {
			continue
		}
		group.Go(func() (err error) {
			if s.nodes[i], err = r.cordonNode(ctx, s, node); isOfWrite(err) {
				refusals[i], err = err, nil
			}
			return err
		})
	}
	err := group.Wait()
	s.cordonErrors = map[string]error{}
	for i, refusal := range refusals {
		if refusal != nil {
			ctrl.LoggerFrom(ctx).Error(refusal, "Failed to cordon Node", "Node", klog.KObj(s.nodes[i]))
			s.cordonErrors[s.nodes[i].Name] = errors.Cause(refusal)
			s.requeueBy(s.now.Add(refusedRetry))
		}
	}
	isOutdated := len(s.cordonErrors) > 0 && s.maintenance.Drains() && r.stillDraining(ctx, s) == nil // a request may have taken long
	return err == nil && !isOutdated, err
}

// cordonFailed returns the message of the condition Cordoned if Nodes could not be cordoned, "" if all could.
func (r *Reconciler) cordonFailed(s *scope) string {
	if len(s.cordonErrors) == 0 {
		return ""
	}
	names := sets.List(sets.KeySet(s.cordonErrors))
	message := "Node " + names[0] + " cannot be cordoned: " + progress.Describe(s.cordonErrors[names[0]])
	if more := len(names) - 1; more > 0 {
		message += " (and " + text.Count(more, "more Node") + ")"
	}
	return cmp.Or(r.reportedMessage(s, v1alpha1.NodeMaintenanceCordoned, message, statusInterval), message)
}

// applyCordon cordons the Node in memory and, if this NodeMaintenance says so, excludes it from load balancers. A Node that waits because
// of maxParallelNodes keeps its traffic and, if this NodeMaintenance says so, stays schedulable. It reports whether the Node has changed.
func applyCordon(s *scope, node *corev1.Node) (changed bool) {
	waits := s.turns.Waiting.Has(node.Name)
	if waits && s.maintenance.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable {
		return false
	}
	changed = cordon.Apply(node)
	if cordon.Excludes(s.maintenance) && !waits {
		changed = cordon.Exclude(node) || changed
	}
	return changed
}

// cordonNode cordons a Node, and returns the latest version of the Node. Other components write Nodes frequently, so it first gets the Node
// from the cache again. After a conflict, it retries once with the Node from the API server.
func (r *Reconciler) cordonNode(ctx context.Context, s *scope, known *corev1.Node) (*corev1.Node, error) {
	cached, err := getSame(ctx, s.client, known)
	if err != nil || cached == nil {
		return known, err
	}
	cordoned, err := r.patchCordon(ctx, s, r.latest(s, cached))
	if !answers.IsConflict(err) {
		return cordoned, err
	}
	uncached, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return known, err
	}
	current, err := getSame(ctx, uncached, known)
	if err != nil || current == nil {
		return known, err
	}
	return r.patchCordon(ctx, s, current)
}

// getSame gets the present version of a Node. It returns nil if the Node no longer exists, also if there is another Node of this name.
func getSame(ctx context.Context, reader client.Reader, known *corev1.Node) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := reader.Get(ctx, client.ObjectKeyFromObject(known), node); err != nil || node.UID != known.UID {
		return nil, errors.Wrapf(answers.IgnoreDoesNotExist(err), "getting Node %s", known.Name)
	}
	return node, nil
}

// patchCordon patches the Node as applyCordon requires, and returns the patched Node. It writes an event if another actor repeatedly makes
// the Node schedulable.
func (r *Reconciler) patchCordon(ctx context.Context, s *scope, node *corev1.Node) (*corev1.Node, error) {
	changed := node.DeepCopy()
	if !applyCordon(s, changed) {
		return node, nil
	}
	uncordoned, by := cordon.WasUncordoned(node), ""
	if uncordoned && r.conflicts.isDue(node.UID, s.request, s.now) { // read before the patch, which makes this manager the owner of the field
		var err error
		if by, err = r.uncordonedBy(ctx, s, node); err != nil {
			return node, err
		}
	}
	if err := jsonpatch.Node(ctx, s.client, node, changed); err != nil {
		return node, errors.Wrapf(answers.IgnoreDoesNotExist(err), "cordoning Node %s", node.Name)
	}
	r.recordWritten(s, changed)
	ctrl.LoggerFrom(ctx).Info("Cordoned Node", "Node", klog.KObj(node), "again", uncordoned)
	if uncordoned && r.conflicts.add(node.UID, s.request, s.now) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventCordonConflict,
			fmt.Sprintf("%s repeatedly makes Node %s schedulable during its maintenance. Stop it, or complete NodeMaintenance %s", by, node.Name, s.maintenance.Name))
	}
	return changed, nil
}

// uncordonedBy names the actor that makes a Node schedulable, from the managedFields, which cached Nodes do not contain.
func (r *Reconciler) uncordonedBy(ctx context.Context, s *scope, node *corev1.Node) (string, error) {
	uncached, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return "", err
	}
	current := &corev1.Node{}
	if err := uncached.Get(ctx, client.ObjectKeyFromObject(node), current); answers.IgnoreDoesNotExist(err) != nil {
		return "", errors.Wrapf(err, "getting Node %s", node.Name)
	}
	if name := cordon.UncordonedBy(current.ManagedFields, fieldManager); name != "" {
		return fmt.Sprintf("Field manager %q", name), nil
	}
	return "An actor that the Node's managedFields do not name", nil
}

const (
	// maxUncordons is how often other actors may make a Node schedulable within uncordonWindow before that is a conflict.
	maxUncordons   = 3
	uncordonWindow = 10 * time.Minute
	// warningInterval is the minimum time between two warnings of one NodeMaintenance.
	warningInterval = time.Minute
)

// conflicts counts how often other actors make cordoned Nodes schedulable. It only decides about warnings, so a restart of the manager may
// discard it. The zero value is ready to use.
type conflicts struct {
	mu        sync.Mutex
	uncordons map[types.UID][]time.Time      // by Node, at most maxUncordons+1
	warned    map[workload.Request]time.Time // by NodeMaintenance
}

// isDue reports whether add would return true.
func (c *conflicts) isDue(node types.UID, maintenance workload.Request, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.warns(node, maintenance, now)
}

// add records that a NodeMaintenance has cordoned a Node again. It returns true if the NodeMaintenance must warn of that.
func (c *conflicts) add(node types.UID, maintenance workload.Request, now time.Time) (warn bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	warn = c.warns(node, maintenance, now)
	maps.DeleteFunc(c.uncordons, func(_ types.UID, at []time.Time) bool { return len(recent(at, now)) == 0 })
	maps.DeleteFunc(c.warned, func(_ workload.Request, at time.Time) bool { return now.Sub(at) >= warningInterval })
	if c.uncordons == nil {
		c.uncordons, c.warned = map[types.UID][]time.Time{}, map[workload.Request]time.Time{}
	}
	at := append(recent(c.uncordons[node], now), now)
	c.uncordons[node] = at[max(0, len(at)-maxUncordons-1):]
	if warn {
		c.warned[maintenance] = now
	}
	return warn
}

func (c *conflicts) warns(node types.UID, maintenance workload.Request, now time.Time) bool {
	warned, known := c.warned[maintenance]
	return len(recent(c.uncordons[node], now)) >= maxUncordons && (!known || now.Sub(warned) >= warningInterval)
}

func recent(at []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(at), func(each time.Time) bool { return now.Sub(each) > uncordonWindow })
}
