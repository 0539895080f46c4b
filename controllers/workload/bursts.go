package workload

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// The interval between two notifications about the same workload cluster doubles during a burst of events, from the first one to the
// longest.
const (
	// Decisions wait for the first lists of a drain watch, so the first notification is sent almost at once.
	firstAffectedInterval = 10 * time.Millisecond
	// Resuming restarts watches, and Machines are resumed one after the other.
	firstResumedInterval = 200 * time.Millisecond
	longestBurstInterval = 5 * time.Second
)

// bursts merges the events of each workload cluster. What an event of a whole workload cluster causes may cost a reconciliation of
// thousands of Evacuations, and tenants cause such events at any rate.
type bursts struct {
	first   time.Duration
	process func(cluster types.NamespacedName)

	mu sync.Mutex
	// pending has the workload clusters with a running goroutine, and whether there was an event since the previous call of process.
	pending map[types.NamespacedName]bool
}

func newBursts(first time.Duration, process func(cluster types.NamespacedName)) *bursts {
	return &bursts{first: first, process: process, pending: map[types.NamespacedName]bool{}}
}

// add has process called after the event, in a goroutine of the workload cluster. It does not block.
func (b *bursts) add(cluster types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, running := b.pending[cluster]
	b.pending[cluster] = true
	if !running {
		go b.run(cluster)
	}
}

// run returns when an interval has passed without an event.
func (b *bursts) run(cluster types.NamespacedName) {
	for interval := b.first; ; interval = min(2*interval, longestBurstInterval) {
		clock.RealClock{}.Sleep(interval)
		if !b.take(cluster) {
			return
		}
		b.process(cluster)
	}
}

// take reports whether there was an event since it was called last. It removes the workload cluster if there was none.
func (b *bursts) take(cluster types.NamespacedName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	happened := b.pending[cluster]
	if b.pending[cluster] = false; !happened {
		delete(b.pending, cluster)
	}
	return happened
}
