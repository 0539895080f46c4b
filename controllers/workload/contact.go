package workload

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
)

// ProbeFailureWindow is the maximum age of the last successful probe. Probes run every 10 s, and a single failed probe may be a short
// overload.
const ProbeFailureWindow = 15 * time.Second

// IsContactLost reports whether a workload cluster does not answer its health probes.
func IsContactLost(state clustercache.HealthCheckingState, now time.Time) bool {
	return state.ConsecutiveFailures > 0 && now.Sub(state.LastProbeSuccessTime) >= ProbeFailureWindow
}

// ContactLost records that a workload cluster does not answer its health probes. The Pods of all Nodes are unknown from then on: a request
// that is sent in an outage of half a minute, and answered after it, must not act on what another actor has changed meanwhile.
func (c *Clusters) ContactLost(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if watch := c.watches[cluster]; watch != nil && !watch.lost {
		watch.lost = true
		watch.forgetPods()
	}
}

// ContactRestored restarts the drain watch of a workload cluster if contact was lost since it began. Watches reconnect automatically, but
// with a backoff of up to a minute after an outage of half a minute.
func (c *Clusters) ContactRestored(cluster types.NamespacedName) {
	isLost := func() bool { return c.watches[cluster] != nil && c.watches[cluster].lost }
	c.mu.RLock()
	restart := isLost()
	c.mu.RUnlock()
	if !restart { // as in nearly each reconciliation
		return
	}
	c.mu.Lock()
	if restart = isLost(); restart {
		c.stopWatch(cluster)
	}
	c.mu.Unlock()
	if restart {
		c.notify(Change{Cluster: cluster, Type: AllPodsAffected}) // owners call Observe again
	}
}
