package evictor

import (
	"context"
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

// separatePaused separates the candidates that are not evicted yet because they have lost a budget.
func (p *pass) separatePaused(ctx context.Context, all []budgets.Candidate) (candidates []budgets.Candidate, waiting []budgets.Waiting) {
	for _, c := range all {
		loss, until := p.pausedBy(ctx, c.Pod, p.now)
		if c.InFlight || until.IsZero() {
			candidates = append(candidates, c)
			continue
		}
		p.requeueAt(until)
		waiting = append(waiting, loss.Waits(c))
	}
	return candidates, waiting
}

// pausedBy returns the loss of a budget because of which a Pod is not evicted yet, and until when. The time is zero if there is none.
func (p *pass) pausedBy(ctx context.Context, pod budgets.Pod, now time.Time) (budgets.Loss, time.Time) {
	loss, lost := p.observation.LossOf(pod)
	s := p.subjects[pod.UID]
	if !lost || s == nil {
		return budgets.Loss{}, time.Time{}
	}
	return loss, p.state.pauses.after(pod.UID, loss, p.finalAttemptAfter(ctx, s.pod, time.Time{}), now)
}
