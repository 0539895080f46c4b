package nodemaintenance

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
)

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

// isDue reports whether add would return a warning.
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
