// Package pace spaces out writes that nobody waits for, such as progress in a status: each is one that an API server, and all
// who watch the object, have to bear. It only ever delays a write; what is lost with the process is written a little early.
package pace

import (
	"sync"
	"time"
)

// Writes remembers when the object of each key was last written. The zero value is ready to use. What is forgotten may be
// written at once.
type Writes[K comparable] struct {
	mu   sync.Mutex
	last map[K]time.Time
}

// Due is when the object may be written again, if it is to be written at most once in interval: now, if it hasn't been
// written yet.
func (w *Writes[K]) Due(key K, now time.Time, interval time.Duration) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.last[key]
	if !known {
		return now
	}
	return last.Add(interval)
}

const (
	// together is how often a second all objects of one API server are written.
	together = 10
	// lately is how long ago an object was written that is still being worked on.
	lately = 2 * time.Minute
)

// Share is the least time between two writes of each object, so that all those that were written lately take no more than their share
// of what their API server can do: a few are written as often as one likes, hundreds aren't. of picks the keys of that API server;
// nil: all.
func (w *Writes[K]) Share(now time.Time, of func(K) bool) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := 0
	for key, last := range w.last {
		if now.Sub(last) < lately && (of == nil || of(key)) {
			objects++
		}
	}
	return time.Duration(objects) * time.Second / together
}

// Note remembers a write.
func (w *Writes[K]) Note(key K, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[K]time.Time{}
	}
	w.last[key] = now
}

// Forget is for an object that is gone.
func (w *Writes[K]) Forget(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, key)
}
