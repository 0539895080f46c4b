package evictor

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// MaxShutdownWait is how long the manager waits for in-flight evictions when it shuts down. It is less than the graceful shutdown timeout
// of the manager.
const MaxShutdownWait = 5 * time.Second

// shutdownGate delays the shutdown of the manager until in-flight evictions have ended. The API server first counts an eviction against the
// budget, and then deletes the Pod. If the client disconnects in between, the budget counts the Pod as disrupted for two minutes
// (status.disruptedPods), so an update of the manager would delay drains that long.
type shutdownGate struct {
	clock clock.Clock

	mu       sync.Mutex
	ending   bool
	inFlight sync.WaitGroup
}

// begin reports whether an eviction may start. If it returns true, the caller must call end.
func (g *shutdownGate) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ending {
		g.inFlight.Add(1)
	}
	return !g.ending
}

func (g *shutdownGate) end() { g.inFlight.Done() }

// Start implements manager.Runnable. It returns when the manager shuts down and either no eviction is in flight or MaxShutdownWait has
// elapsed.
func (g *shutdownGate) Start(ctx context.Context) error {
	<-ctx.Done()
	g.mu.Lock()
	g.ending = true
	g.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		g.inFlight.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-g.clock.After(MaxShutdownWait):
	}
	return nil
}
