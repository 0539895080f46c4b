package nodemaintenance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/controllers/remote"
)

// createdGrace is how long a created Evacuation may take to come back by the watch before it is created once more. Normally
// it is back within milliseconds; an API server that is busy with a burst of drains takes half a minute.
const createdGrace = time.Minute

const (
	// minRefusedRetry and maxRefusedRetry bound the backoff after which an Evacuation is created once more that the API server has
	// refused.
	minRefusedRetry = 5 * time.Second
	maxRefusedRetry = time.Minute
)

// creations remembers the Evacuations that were created but haven't come back by the watch, and those that the API server has refused.
// Each of its siblings that does come back brings a reconciliation, which would create the rest of them again: calls that are refused,
// when the API server has most to do. No more than this depends on it: what is lost with the process is created, and refused, a second
// time.
type creations struct {
	mu   sync.Mutex
	last map[remote.Request]map[types.UID]creation // by NodeMaintenance and Pod
}

// creation is how the last try to create the Evacuation of a Pod has ended.
type creation struct {
	until   time.Time // the next one
	backoff time.Duration
	refused error // nil: it was created
}

// awaited says until when not to create the Evacuation of a Pod. False: it wasn't tried, or the next try is due.
func (c *creations) awaited(request remote.Request, pod types.UID, now time.Time) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.last[request][pod]
	return last.until, known && now.Before(last.until)
}

// note remembers that the Evacuation of a Pod was created.
func (c *creations) note(request remote.Request, pod types.UID, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(request, pod, creation{until: now.Add(createdGrace)})
}

// refuse remembers that the API server has refused the Evacuation of a Pod.
func (c *creations) refuse(request remote.Request, pod types.UID, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	backoff := min(max(2*c.last[request][pod].backoff, minRefusedRetry), maxRefusedRetry)
	c.set(request, pod, creation{until: now.Add(backoff), backoff: backoff, refused: err})
}

func (c *creations) set(request remote.Request, pod types.UID, last creation) {
	if c.last == nil {
		c.last = map[remote.Request]map[types.UID]creation{}
	}
	if c.last[request] == nil {
		c.last[request] = map[types.UID]creation{}
	}
	c.last[request][pod] = last
}

// refusals are why Evacuations were refused, by Pod, and retryAt when the first of them is due to be tried again, zero if there is none.
// Those of Pods that are gone are forgotten.
func (c *creations) refusals(request remote.Request, isThere func(types.UID) bool) (refused map[types.UID]error, retryAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused = map[types.UID]error{}
	for pod, last := range c.last[request] {
		switch {
		case last.refused == nil:
		case !isThere(pod):
			delete(c.last[request], pod)
		default:
			refused[pod] = last.refused
			if retryAt.IsZero() || last.until.Before(retryAt) {
				retryAt = last.until
			}
		}
	}
	return refused, retryAt
}

// back forgets an Evacuation that has come back: if it goes after that, it is created again at once.
func (c *creations) back(request remote.Request, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last[request], pod)
}

// forget is for a NodeMaintenance that is gone.
func (c *creations) forget(request remote.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last, request)
}
