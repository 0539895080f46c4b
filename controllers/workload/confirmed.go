package workload

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// confirmations are the NodeMaintenances that this process has found to be drained. The condition Drained alone may be that of an earlier process:
// Pods may have started on the Nodes since. Confirmations are kept in memory: without them, the release of a Machine is only delayed until its
// NodeMaintenance has been reconciled.
type confirmations struct {
	mu        sync.Mutex
	byRequest map[Request]confirmation
}

type confirmation struct {
	uid        types.UID
	generation int64
}

func confirmationOf(m *v1alpha1.NodeMaintenance) confirmation {
	return confirmation{uid: m.UID, generation: m.Generation}
}

// ConfirmDrained records that a reconciliation has found a NodeMaintenance to be drained. The Pods of its Nodes are watched.
func (c *Clusters) ConfirmDrained(request Request, m *v1alpha1.NodeMaintenance, node string) {
	if c.confirmed.set(request, confirmationOf(m)) {
		c.notify(Change{Cluster: request.Cluster, Type: DrainConfirmed, Node: node})
	}
}

// WithdrawDrained ends what ConfirmDrained has recorded.
func (c *Clusters) WithdrawDrained(request Request) {
	c.confirmed.remove(func(other Request) bool { return other == request })
}

// IsConfirmed reports whether this process has found the NodeMaintenance to be drained under its present spec, since the Pods of its Nodes have been
// watched.
func (c *Clusters) IsConfirmed(request Request, m *v1alpha1.NodeMaintenance) bool {
	return c.confirmed.get(request) == confirmationOf(m)
}

func (c *confirmations) set(request Request, confirmed confirmation) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byRequest[request] == confirmed {
		return false
	}
	if c.byRequest == nil {
		c.byRequest = map[Request]confirmation{}
	}
	c.byRequest[request] = confirmed
	return true
}

func (c *confirmations) get(request Request) confirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byRequest[request]
}

func (c *confirmations) remove(matches func(Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.byRequest, func(request Request, _ confirmation) bool { return matches(request) })
}
