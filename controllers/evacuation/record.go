package evacuation

import (
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// record bridges, for one workload cluster, the moments between an eviction and its appearance in the watches. It is no
// state of the drain: an evictor that starts without it only risks a refusal that the watches would have told it.
type record struct {
	mu       sync.Mutex
	evicted  map[types.UID]bool      // Pods whose eviction was accepted, and that the watch still shows without a deletionTimestamp
	until    map[types.UID]time.Time // Pods whose eviction was refused, and when it is tried again
	observed map[types.UID]string    // by PodDisruptionBudget: the resourceVersion that the watch must reach to count
}

func newRecord() *record {
	return &record{evicted: map[types.UID]bool{}, until: map[types.UID]time.Time{}, observed: map[types.UID]string{}}
}

// keep drops what concerns none of the live Pods.
func (r *record) keep(live map[types.UID]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.evicted {
		if !live[uid] {
			delete(r.evicted, uid)
		}
	}
	for uid := range r.until {
		if !live[uid] {
			delete(r.until, uid)
		}
	}
}

func (r *record) accept(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evicted[pod] = true
	delete(r.until, pod)
}

func (r *record) accepted(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.evicted[pod]
}

func (r *record) refuse(pod types.UID, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until[pod] = until
}

func (r *record) backsOff(pod types.UID, now time.Time) (until time.Time, wait bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, refused := r.until[pod]
	return until, refused && now.Before(until)
}

// observedAtLeast says that the budget was seen at this version, after evictions that it counts.
func (r *record) observedAtLeast(budget types.UID, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observed[budget] = version
}

// isStale says whether the watch's budget is older than what was seen: it doesn't know of our evictions yet, and its room
// can't be trusted.
func (r *record) isStale(pdb *policyv1.PodDisruptionBudget) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, found := r.observed[pdb.UID]
	if !found {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(pdb.ResourceVersion, seen)
	if err == nil && order < 0 {
		return true
	}
	delete(r.observed, pdb.UID)
	return false
}
