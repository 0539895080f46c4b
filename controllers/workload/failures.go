package workload

import (
	"maps"
	"sync"
	"time"
)

// persistAfter is how long a reconciliation must fail before the failure is reported on the object.
const persistAfter = 10 * time.Second

// Failures records since when the reconciliations of objects have failed, and why. The zero value is ready to use. It is kept in memory: a
// restart of the manager delays the report of a failure by persistAfter, and has no other effect.
type Failures[K comparable] struct {
	mu    sync.Mutex
	byKey map[K]Failure
}

// Failure is a reconciliation that fails repeatedly.
type Failure struct {
	Since time.Time
	Err   error // the latest
}

// Persists reports whether the failure has lasted long enough to be reported. A shorter failure may be a transient overload.
func (f Failure) Persists(now time.Time) bool {
	return f.Err != nil && !now.Before(f.ReportAt())
}

// Next returns the failure after another reconciliation. A nil error ends the failure.
func (f Failure) Next(err error, now time.Time) Failure {
	switch {
	case err == nil:
		return Failure{}
	case f.Err == nil:
		return Failure{Since: now, Err: err}
	default:
		return Failure{Since: f.Since, Err: err}
	}
}

// ReportAt returns when the failure is reported if it persists.
func (f Failure) ReportAt() time.Time { return f.Since.Add(persistAfter) }

// Record records the result of a reconciliation. A nil error ends the failure.
func (f *Failures[K]) Record(key K, err error, now time.Time) Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.byKey, key)
		return Failure{}
	}
	failure := f.byKey[key].Next(err, now)
	if f.byKey == nil {
		f.byKey = map[K]Failure{}
	}
	f.byKey[key] = failure
	return failure
}

// Get returns the failure of an object. Its Err is nil if the object has not failed.
func (f *Failures[K]) Get(key K) Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byKey[key]
}

func (f *Failures[K]) all() map[K]Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.byKey)
}

// Remove ends the failures of all matching objects, for example those of a deleted Cluster.
func (f *Failures[K]) Remove(matches func(K) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byKey, func(key K, _ Failure) bool { return matches(key) })
}
