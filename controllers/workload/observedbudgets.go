package workload

import (
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/utils/clock"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// observedBudgets contains the PodDisruptionBudgets of a workload cluster as their events arrived. It replaces the store of the informer,
// which drops a deleted budget before the event of the deletion arrives: a Pod could be evicted in between.
type observedBudgets struct {
	clock clock.PassiveClock

	mu       sync.RWMutex
	observed *budgets.Observed
	expires  bool // expire is scheduled
}

// newObservedBudgets returns the budgets for a watch that continues an earlier one, which may be nil.
func newObservedBudgets(earlier *observedBudgets, now clock.PassiveClock) *observedBudgets {
	if earlier == nil {
		return &observedBudgets{clock: now, observed: budgets.NewObserved(nil)}
	}
	earlier.mu.RLock()
	defer earlier.mu.RUnlock()
	return &observedBudgets{clock: now, observed: budgets.NewObserved(earlier.observed)}
}

func (b *observedBudgets) changed(pdb *policyv1.PodDisruptionBudget) {
	b.record(func(now time.Time) { b.observed.Observe(pdb, now) })
}

func (b *observedBudgets) deleted(pdb *policyv1.PodDisruptionBudget) {
	b.record(func(now time.Time) { b.observed.ObserveDeletion(pdb, now) })
}

func (b *observedBudgets) listComplete() {
	b.record(b.observed.ObserveList)
}

func (b *observedBudgets) labelsChanged(before, after budgets.Pod) {
	b.record(func(now time.Time) { b.observed.ObserveLabels(before, after, now) })
}

func (b *observedBudgets) list() ([]*budgets.Budget, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.observed.Budgets()
}

func (b *observedBudgets) lossOf(pod budgets.Pod) (budgets.Loss, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.observed.LossOf(pod, b.clock.Now())
}

func (b *observedBudgets) record(event func(now time.Time)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	event(b.clock.Now())
	if !b.expires && b.observed.HasLosses() {
		b.expires = true
		clock.RealClock{}.AfterFunc(budgets.LossCounts, b.expire)
	}
}

// expire frees the memory of losses, also if no further event arrives.
func (b *observedBudgets) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expires = b.observed.Expire(b.clock.Now()); b.expires {
		clock.RealClock{}.AfterFunc(budgets.LossCounts, b.expire)
	}
}
