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

// creations remembers the Evacuations that were created but haven't come back by the watch. Each of its siblings that does
// come back brings a reconciliation, which would create the rest of them again: calls that are refused, when the API server has
// most to do. No more than this depends on it: what is lost with the process is created, and refused, a second time.
type creations struct {
	mu sync.Mutex
	at map[remote.Request]map[types.UID]time.Time // by NodeMaintenance and Pod
}

// awaited says until when to wait for the Evacuation of a Pod to come back. False: it wasn't created, or is overdue.
func (c *creations) awaited(request remote.Request, pod types.UID, now time.Time) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	created, known := c.at[request][pod]
	return created.Add(createdGrace), known && now.Before(created.Add(createdGrace))
}

// note remembers that the Evacuation of a Pod was created.
func (c *creations) note(request remote.Request, pod types.UID, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[remote.Request]map[types.UID]time.Time{}
	}
	if c.at[request] == nil {
		c.at[request] = map[types.UID]time.Time{}
	}
	c.at[request][pod] = now
}

// back forgets an Evacuation that has come back: if it goes after that, it is created again at once.
func (c *creations) back(request remote.Request, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at[request], pod)
}

// forget is for a NodeMaintenance that is gone.
func (c *creations) forget(request remote.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.at, request)
}
