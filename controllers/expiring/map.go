// Package expiring keeps values in memory for a limited time. Most of them are about objects of users, who may create any number, and
// nothing looks up the value of an object that no longer exists. So values are removed without a look-up, and their number is limited.
package expiring

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Limit is the maximum number of values of each workload cluster.
const Limit = 10000

// sweepInterval is how often expired values are removed.
const sweepInterval = 10 * time.Second

// Map keeps values by workload cluster and key. Each value expires. When a workload cluster has Limit values, the tenth of them that would
// expire first is removed for a new one. A Map is safe for concurrent use.
type Map[K comparable, V any] struct {
	mu       sync.Mutex
	clusters map[types.NamespacedName]map[K]item[V]
	clock    clock.WithTicker
}

type item[V any] struct {
	value   V
	expires time.Time
}

// NewMap returns an empty Map. It removes expired values until ctx ends.
func NewMap[K comparable, V any](ctx context.Context) *Map[K, V] {
	m := &Map[K, V]{clusters: map[types.NamespacedName]map[K]item[V]{}, clock: clock.RealClock{}}
	go func() {
		for ticker := m.clock.NewTicker(sweepInterval); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C():
				m.sweep()
			}
		}
	}()
	return m
}

// Get returns a value that has not expired.
func (m *Map[K, V]) Get(cluster types.NamespacedName, key K) (value V, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found = m.get(cluster, key, &value)
	return value, found
}

// Set sets a value, which expires after a time.
func (m *Map[K, V]) Set(cluster types.NamespacedName, key K, value V, expiresAfter time.Duration) {
	m.Update(cluster, key, func(V, bool) (V, time.Duration) { return value, expiresAfter })
}

// Update replaces a value. change gets the present one, if there is one that has not expired, and returns the next one with the time after
// which it expires. A time of zero removes the value.
func (m *Map[K, V]) Update(cluster types.NamespacedName, key K, change func(present V, found bool) (V, time.Duration)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var present V
	found := m.get(cluster, key, &present)
	next, expiresAfter := change(present, found)
	values := m.clusters[cluster]
	if expiresAfter <= 0 {
		delete(values, key)
		return
	}
	if values == nil {
		values = map[K]item[V]{}
		m.clusters[cluster] = values
	}
	if _, replaces := values[key]; !replaces && len(values) >= Limit {
		removeFirst(values)
	}
	values[key] = item[V]{value: next, expires: m.clock.Now().Add(expiresAfter)}
}

// Len returns the number of values in memory.
func (m *Map[K, V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	length := 0
	for _, values := range m.clusters {
		length += len(values)
	}
	return length
}

// get reads a value. The caller holds the lock.
func (m *Map[K, V]) get(cluster types.NamespacedName, key K, value *V) (found bool) {
	known, found := m.clusters[cluster][key]
	if !found || !m.clock.Now().Before(known.expires) {
		return false
	}
	*value = known.value
	return true
}

func (m *Map[K, V]) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for cluster, values := range m.clusters {
		for key, each := range values {
			if !now.Before(each.expires) {
				delete(values, key)
			}
		}
		if len(values) == 0 {
			delete(m.clusters, cluster)
		}
	}
}

// removeFirst removes the tenth of the values that expires first.
func removeFirst[K comparable, V any](values map[K]item[V]) {
	keys := slices.SortedFunc(maps.Keys(values), func(a, b K) int { return values[a].expires.Compare(values[b].expires) })
	for _, key := range keys[:len(keys)/10] {
		delete(values, key)
	}
}
