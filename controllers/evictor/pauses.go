package evictor

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// pauses contains, for one workload cluster, the Pods that were not evicted for a moment because they had lost a budget.
type pauses struct {
	mu   sync.Mutex
	pods map[types.UID]budgets.Pauses
}

func newPauses() *pauses { return &pauses{pods: map[types.UID]budgets.Pauses{}} }

// after returns until when a Pod is not evicted, zero if it may be evicted now: see budgets.Pauses.
func (p *pauses) after(pod types.UID, loss budgets.Loss, final, now time.Time) (until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[pod], until = p.pods[pod].After(loss, final, now)
	return until
}

// prune deletes the records of Pods whose pauses have no effect any more.
func (p *pauses) prune(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.pods, func(_ types.UID, of budgets.Pauses) bool { return of.IsPast(now) })
}
