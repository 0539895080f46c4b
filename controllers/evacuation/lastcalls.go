package evacuation

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Patience is how long the manager's end waits for evictions under way. Most take milliseconds; it is less than the time that the
// whole manager has to end.
const Patience = 5 * time.Second

// lastCalls lets the evictions under way end before the manager does. The API server takes the room for an eviction from the budget,
// and then deletes the Pod. If its caller goes away in between, the room is lost for two minutes (disruptedPods of a
// PodDisruptionBudget), and an update of the manager would hold up drains that long.
type lastCalls struct {
	clock clock.Clock

	mu       sync.Mutex
	ending   bool
	underWay sync.WaitGroup
}

// begin says whether an eviction may begin, which must end, then.
func (l *lastCalls) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ending {
		l.underWay.Add(1)
	}
	return !l.ending
}

func (l *lastCalls) end() { l.underWay.Done() }

// Start implements manager.Runnable. It returns when the manager is about to end, and no eviction is under way or Patience is over.
func (l *lastCalls) Start(ctx context.Context) error {
	<-ctx.Done()
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		l.underWay.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-l.clock.After(Patience):
	}
	return nil
}
