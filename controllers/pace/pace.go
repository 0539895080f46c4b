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
