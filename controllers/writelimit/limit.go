// Package writelimit limits the rate of writes, above all of those that are not urgent, such as progress in a status: the API server and
// all watchers of the object must process each write. The package only delays writes. After a restart of the process, a write may be early.
package writelimit

import (
	"maps"
	"sync"
	"time"
)

// Limiter records when the object of each key was last written. The zero value is ready to use. An object without a record may be written
// at once.
type Limiter[K comparable] struct {
	mu   sync.Mutex
	last map[K]time.Time
	used map[K]time.Time // until when the writes of the object have used up its urgent ones, at one in each urgentInterval
}

// NextWrite returns when the object may be written again, if it may be written at most once in an interval. It returns now if the object
// has no record.
func (w *Limiter[K]) NextWrite(key K, now time.Time, interval time.Duration) time.Time {
	if last := w.LastWrite(key); !last.IsZero() {
		return last.Add(interval)
	}
	return now
}

// LastWrite returns when the object was last written, zero if it has no record.
func (w *Limiter[K]) LastWrite(key K) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[key]
}

const (
	// urgentBurst is how many writes of one object may follow each other immediately, and urgentInterval the interval of further ones.
	urgentBurst    = 10
	urgentInterval = time.Second
)

// NextUrgent returns when the object may be written for a change that is not to be delayed, such as that of a condition: now, unless it was
// written ten times within seconds. Two managers that run at the same time for a moment, and observe different things, would otherwise
// replace each other's status without pause.
func (w *Limiter[K]) NextUrgent(key K, now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.used[key].Add(-(urgentBurst - 1) * urgentInterval); at.After(now) {
		return at
	}
	return now
}

const (
	// writesPerSecond is the maximum total rate of writes to one API server, per second.
	writesPerSecond = 10
	// activeWindow is the maximum age of the last write of an object that still counts as active.
	activeWindow = 2 * time.Minute
)

// FairInterval returns the minimum interval between two writes of the same object, at which all recently written objects of an API server
// together do not exceed its rate of writes. of selects the keys of that API server; nil selects all.
func (w *Limiter[K]) FairInterval(now time.Time, of func(K) bool) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := 0
	for key, last := range w.last {
		if now.Sub(last) < activeWindow && (of == nil || of(key)) {
			objects++
		}
	}
	return time.Duration(objects) * time.Second / writesPerSecond
}

// Record records a write. One that did not wait for NextUrgent does not delay the next urgent one for longer than urgentInterval.
func (w *Limiter[K]) Record(key K, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last, w.used = map[K]time.Time{}, map[K]time.Time{}
	}
	w.last[key] = now
	if w.used[key].Before(now) {
		w.used[key] = now
	}
	if w.used[key] = w.used[key].Add(urgentInterval); w.used[key].After(now.Add(urgentBurst * urgentInterval)) {
		w.used[key] = now.Add(urgentBurst * urgentInterval)
	}
}

// RemoveAll deletes the records of all matching objects.
func (w *Limiter[K]) RemoveAll(matches func(K) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := func(key K, _ time.Time) bool { return matches(key) }
	maps.DeleteFunc(w.last, of)
	maps.DeleteFunc(w.used, of)
}

// Remove deletes the record of an object that no longer exists.
func (w *Limiter[K]) Remove(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, key)
	delete(w.used, key)
}
