package remote

import (
	"maps"
	"sync"
	"time"
)

// failurePersists is how long the reconciliation of an object has failed when it is worth a word on the object.
const failurePersists = 10 * time.Second

// Failures remembers since when the reconciliations of objects fail, and why. The zero value is ready to use. It is kept in memory: a
// restart of the manager delays what is said about a failure by failurePersists, and changes nothing else.
type Failures[K comparable] struct {
	mu    sync.Mutex
	byKey map[K]Failure
}

// Failure is a reconciliation that fails time and again.
type Failure struct {
	Since time.Time
	Err   error // the latest
}

// Persists says whether the failure has lasted long enough to be told. A failure that is not persistent may be a busy moment.
func (f Failure) Persists(now time.Time) bool {
	return f.Err != nil && !now.Before(f.ToldAt())
}

// ToldAt is when the failure is told if it lasts.
func (f Failure) ToldAt() time.Time { return f.Since.Add(failurePersists) }

// Note remembers how a reconciliation has ended. A nil error ends the failure.
func (f *Failures[K]) Note(key K, err error, now time.Time) Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.byKey, key)
		return Failure{}
	}
	failure := Failure{Since: now, Err: err}
	if before, fails := f.byKey[key]; fails {
		failure.Since = before.Since
	}
	if f.byKey == nil {
		f.byKey = map[K]Failure{}
	}
	f.byKey[key] = failure
	return failure
}

// Get returns the failure of an object. Its Err is nil if there is none.
func (f *Failures[K]) Get(key K) Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byKey[key]
}

// Forget ends the failures of all objects that match, as those of a Cluster that is gone.
func (f *Failures[K]) Forget(matches func(K) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byKey, func(key K, _ Failure) bool { return matches(key) })
}
