package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
)

// roomAt is how many disruptions the budget allowed from a moment on.
type roomAt struct {
	at      time.Time
	allowed int32
}

// roomWatch writes down how the room of the budget changes. The audit log knows who has written the budget, and when, but not
// what.
type roomWatch struct {
	cancel  context.CancelFunc
	done    sync.WaitGroup
	history []roomAt
}

func (a *arena) watchRoom(ctx context.Context) (*roomWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	watcher, err := a.workload.Client.Watch(ctx, &policyv1.PodDisruptionBudgetList{}, client.InNamespace(appNamespace), client.MatchingFields{"metadata.name": appName})
	if err != nil {
		cancel()
		return nil, errors.Wrap(err, "watching the budget")
	}
	w := &roomWatch{cancel: cancel}
	w.done.Go(func() {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			if budget, ok := event.Object.(*policyv1.PodDisruptionBudget); ok {
				w.history = append(w.history, roomAt{time.Now(), budget.Status.DisruptionsAllowed})
			}
		}
	})
	return w, nil
}

// stop ends the watch and returns what it has seen.
func (w *roomWatch) stop() []roomAt {
	w.cancel()
	w.done.Wait()
	return w.history
}

// idle is a stretch of time in which the budget had room and no eviction was under way.
type idle struct {
	length time.Duration
	// round: it begins with the budget's change, not with the end of another eviction.
	round bool
}

// unused returns the idle stretches between the first eviction and the last one.
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
	begin, end := evictions[0].Requested, evictions[0].Requested
	for _, eviction := range evictions {
		changes = append(changes, change{eviction.Requested, -1, 1}, change{eviction.Answered, -1, -1})
		if eviction.Requested.Before(begin) {
			begin = eviction.Requested
		}
		if eviction.Requested.After(end) {
			end = eviction.Requested
		}
	}
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
