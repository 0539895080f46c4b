package budgets

import "time"

// Limits of the pauses of a Pod, so that a tenant who deletes budgets repeatedly does not stop its eviction.
const (
	pausesLast  = 10 * time.Second // at most, within pausesCount
	pausesCount = time.Minute
	minPause    = time.Second
)

// Pauses are the times, within the last minute, in which a Pod was not evicted because it had lost a budget.
type Pauses []pause

type pause struct{ from, until time.Time }

// After decides until when a Pod that has lost a budget is not evicted. It returns the zero time if the Pod may be evicted now, and the
// pauses to pass to the next call. final is when the Pod gets its final eviction attempt before the drain timeout, zero if there is no
// timeout.
func (p Pauses) After(loss Loss, final, now time.Time) (next Pauses, until time.Time) {
	left := pausesLast
	for _, each := range p {
		if now.Sub(each.until) < pausesCount {
			next = append(next, each)
			left -= max(0, earliest(each.until, now).Sub(latest(each.from, now.Add(-pausesCount))))
		}
	}
	until = earliest(loss.At.Add(LossCounts), now.Add(left))
	if !final.IsZero() {
		until = earliest(until, final)
	}
	if !now.Before(until) {
		return next, time.Time{}
	}
	if last := len(next) - 1; last >= 0 && !next[last].until.Before(now) {
		next[last].until = until
		return next, until
	}
	if left < minPause {
		return next, time.Time{}
	}
	return append(next, pause{from: now, until: until}), until
}

// IsPast reports whether the pauses have no effect any more.
func (p Pauses) IsPast(now time.Time) bool {
	return len(p) == 0 || now.Sub(p[len(p)-1].until) >= pausesCount
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
