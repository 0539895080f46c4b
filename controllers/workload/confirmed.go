package workload

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// confirmations are the NodeMaintenances that this process has found to be drained, or whose Pods have all had their final eviction
// attempts. The conditions alone may be those of an earlier process: Pods may have started on the Nodes since. Confirmations are kept in
// memory: without them, the release of a Machine is only delayed until its NodeMaintenance has been reconciled.
type confirmations struct {
	mu        sync.Mutex
	byRequest map[Request]confirmed
}

// confirmed is a confirmation with the Pods on the Nodes that it is about.
type confirmed struct {
	confirmation

	pods        sets.Set[types.UID]
	unreachable bool // see ConfirmDrained
}

type confirmation struct {
	uid        types.UID
	generation int64
	drained    bool // otherwise, the final eviction attempts have been made
}

func confirmationOf(m *v1alpha1.NodeMaintenance, drained bool) confirmation {
	return confirmation{uid: m.UID, generation: m.Generation, drained: drained}
}

// ConfirmDrained records that a reconciliation has found a NodeMaintenance to be drained. The Pods of its Nodes are watched; pods are those
// that the watch has delivered, none of which must be drained any more. If the Node was unreachable, that holds as long as it is: Pods that
// terminate counted as gone.
func (c *Clusters) ConfirmDrained(request Request, m *v1alpha1.NodeMaintenance, node string, unreachable bool, pods sets.Set[types.UID]) {
	c.setConfirmed(request, confirmed{confirmationOf(m, true), pods, unreachable}, node)
}

// ConfirmAttempted records that a reconciliation has found that all Pods which must be evicted have had their final eviction attempts, and
// those that terminate their grace periods.
func (c *Clusters) ConfirmAttempted(request Request, m *v1alpha1.NodeMaintenance, node string) {
	c.setConfirmed(request, confirmed{confirmation: confirmationOf(m, false)}, node)
}

func (c *Clusters) setConfirmed(request Request, found confirmed, node string) {
	if c.confirmed.set(request, found) {
		c.notify(Change{Cluster: request.Cluster, Type: DrainConfirmed, Node: node})
	}
}

// WithdrawConfirmation ends what ConfirmDrained or ConfirmAttempted has recorded.
func (c *Clusters) WithdrawConfirmation(request Request) {
	c.confirmed.remove(func(other Request) bool { return other == request })
}

// IsConfirmed reports whether this process has found the NodeMaintenance to be drained under its present spec, since the Pods of its Nodes
// have been watched.
func (c *Clusters) IsConfirmed(request Request, m *v1alpha1.NodeMaintenance) bool {
	return c.confirmed.get(request).confirmation == confirmationOf(m, true)
}

// IsAttempted reports whether this process has found that the final eviction attempts have been made, see ConfirmAttempted, and that Pods
// remain.
func (c *Clusters) IsAttempted(request Request, m *v1alpha1.NodeMaintenance) bool {
	return c.confirmed.get(request).confirmation == confirmationOf(m, false)
}

// ConfirmedPods returns the Pods with which IsConfirmed is true, none if it is false, and whether the Node was unreachable.
func (c *Clusters) ConfirmedPods(request Request, m *v1alpha1.NodeMaintenance) (pods sets.Set[types.UID], unreachable bool) {
	if last := c.confirmed.get(request); last.confirmation == confirmationOf(m, true) {
		return last.pods, last.unreachable
	}
	return nil, false
}

// SetWaiting records the Pods that a pass of the evictor has found waiting, for a PodDisruptionBudget for example, although their final
// eviction attempts are due, with the names of their Nodes. It replaces those of the previous pass. They are kept in memory, and as long as
// the observation of the pass: an Evacuation that says why its Pod waits may be from before an outage of all managers, or before a pause.
func (c *Clusters) SetWaiting(cluster types.NamespacedName, observation Observation, pods map[types.UID]string) {
	c.mu.RLock()
	watch := c.watches[cluster]
	c.mu.RUnlock()
	if watch == nil || observation != Observation(watch.drainWatch) {
		return
	}
	for node := range watch.setWaiting(pods) {
		c.notify(Change{Cluster: cluster, Type: PodsWaiting, Node: node})
	}
}

// Waiting returns what SetWaiting has recorded last, read-only.
func (c *Clusters) Waiting(cluster types.NamespacedName) map[types.UID]string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	watch := c.watches[cluster]
	if watch == nil {
		return nil
	}
	watch.mu.RLock()
	defer watch.mu.RUnlock()
	return watch.waiting
}

// setWaiting returns the Nodes of the Pods that were not waiting before.
func (w *drainWatch) setWaiting(pods map[types.UID]string) sets.Set[string] {
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := sets.New[string]()
	for pod, node := range pods {
		if _, found := w.waiting[pod]; !found {
			nodes.Insert(node)
		}
	}
	w.waiting = pods
	return nodes
}

func (c *confirmations) set(request Request, last confirmed) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byRequest == nil {
		c.byRequest = map[Request]confirmed{}
	}
	changed = c.byRequest[request].confirmation != last.confirmation
	c.byRequest[request] = last
	return changed
}

func (c *confirmations) get(request Request) confirmed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byRequest[request]
}

func (c *confirmations) remove(matches func(Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.byRequest, func(request Request, _ confirmed) bool { return matches(request) })
}
