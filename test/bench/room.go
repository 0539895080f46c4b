package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// roomAt is the number of disruptions that a budget allows from a point in time.
type roomAt struct {
	at      time.Time
	allowed int32
}

// rooms are the histories of budgets, by budget.
type rooms map[client.ObjectKey][]roomAt

// roomWatch records the allowed disruptions of all budgets of a workload cluster. The audit log has the time and user of a budget's
// status update, but not its content.
type roomWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	seen   rooms
}

func watchRoom(ctx context.Context, c client.WithWatch) (*roomWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	budgets := &policyv1.PodDisruptionBudgetList{}
	watcher, err := lastingWatch(ctx, c, budgets)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &roomWatch{cancel: cancel, seen: rooms{}}
	for i := range budgets.Items {
		w.see(&budgets.Items[i])
	}
	w.done.Go(func() {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			if budget, ok := event.Object.(*policyv1.PodDisruptionBudget); ok {
				w.see(budget)
			}
		}
	})
	return w, nil
}

func (w *roomWatch) see(budget *policyv1.PodDisruptionBudget) {
	key := client.ObjectKeyFromObject(budget)
	w.seen[key] = append(w.seen[key], roomAt{time.Now(), budget.Status.DisruptionsAllowed})
}

// stop stops the watch and returns the histories.
func (w *roomWatch) stop() rooms {
	w.cancel()
	w.done.Wait()
	return w.seen
}

// unusedIn returns the idle periods of all budgets. The name of a budget is the prefix of the names of its Pods.
func unusedIn(seen rooms, evictions controlplane.Events) []idle {
	var found []idle
	for budget, history := range seen {
		found = append(found, unused(history, evictions.InNamespace(budget.Namespace).Where(func(e controlplane.Event) bool {
			return strings.HasPrefix(e.Name, budget.Name+"-")
		}))...)
	}
	return found
}

// idle is a period in which the budget allowed a disruption and no eviction was in flight.
type idle struct {
	length time.Duration
	// round is true if it starts with the budget's change, and false if it starts with the end of another eviction.
	round bool
}

// unused returns the idle periods between the first eviction and the last one.
func unused(history []roomAt, evictions controlplane.Events) []idle {
	if len(evictions) == 0 {
		return nil
	}
	type change struct {
		at      time.Time
		allowed int32 // -1: as before
		running int
	}
	var changes []change
	for _, room := range history {
		changes = append(changes, change{room.at, room.allowed, 0})
	}
	for _, eviction := range evictions {
		changes = append(changes, change{eviction.Requested, -1, 1}, change{eviction.Answered, -1, -1})
	}
	begin, end := slices.MinFunc(evictions, byRequest).Requested, slices.MaxFunc(evictions, byRequest).Requested
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })

	var found []idle
	var since time.Time
	allowed, running, isIdle, byRoom := int32(0), 0, false, false
	for _, c := range changes {
		if c.at.After(end) {
			break
		}
		running += c.running
		if c.allowed >= 0 {
			allowed = c.allowed
		}
		now := allowed > 0 && running == 0 && !c.at.Before(begin)
		switch {
		case now && !isIdle:
			since, byRoom = c.at, c.running == 0
		case !now && isIdle:
			found = append(found, idle{c.at.Sub(since), byRoom})
		}
		isIdle = now
	}
	return found
}
