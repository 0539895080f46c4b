package evacuation

import (
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// watchLag is how long the watch may take to deliver the termination of a Pod. If it takes longer, the Pod is evicted a second time, which is
// harmless because of the UID precondition.
const watchLag = 30 * time.Second

// record contains, for one workload cluster, the evictions that the watches may not have delivered yet, and the backoffs after refused
// evictions. It is not required for correctness: without it, after a restart, evictions may be refused that would not have been requested.
type record struct {
	inFlight *inFlightEvictions

	mu              sync.Mutex
	unansweredCount map[types.UID]int32     // numbers of evictions without a response, by Pod
	backoffUntil    map[types.UID]time.Time // times before which Pods must not be evicted again
	refusals        map[types.UID]string    // reasons of the last refusals, by Pod
	reportedReasons map[string]bool         // reasons for which the metric of blocked Pods has a series; used by one pass at a time
	observed        map[types.UID]string    // resourceVersion that the watch must reach before the status is used, by PodDisruptionBudget
}

func newRecord() *record {
	return &record{
		inFlight: newInFlightEvictions(), unansweredCount: map[types.UID]int32{}, backoffUntil: map[types.UID]time.Time{}, refusals: map[types.UID]string{},
		observed: map[types.UID]string{}, reportedReasons: map[string]bool{},
	}
}

// keep drops the Pods that are not live and may be evicted again. A Pod whose Machine is paused is not live. It must not be evicted a second
// time if the Machine is resumed before the watch delivers the termination of the Pod.
func (r *record) keep(live map[types.UID]bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, until := range r.backoffUntil {
		if !live[uid] && !now.Before(until) {
			delete(r.backoffUntil, uid)
			delete(r.unansweredCount, uid)
			delete(r.refusals, uid)
		}
	}
}

// unanswered counts one more eviction of a Pod without a response, and returns the count.
func (r *record) unanswered(pod types.UID) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unansweredCount[pod]++
	return r.unansweredCount[pod]
}

// backOff defers the next eviction of a Pod after an eviction that was accepted or got no response.
func (r *record) backOff(pod types.UID, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backoffUntil[pod] = until
	delete(r.refusals, pod)
}

// refuse defers the next eviction of a Pod after an eviction that was refused.
func (r *record) refuse(pod types.UID, until time.Time, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backoffUntil[pod] = until
	r.refusals[pod] = reason
}

// refusal returns the reason why the last eviction of a Pod was refused, "" if it was not refused.
func (r *record) refusal(pod types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusals[pod]
}

// lastBackoff returns the latest time until which the eviction of some Pod is deferred, zero if there is none.
func (r *record) lastBackoff() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for _, until := range r.backoffUntil {
		if last.Before(until) {
			last = until
		}
	}
	return last
}

func (r *record) backingOff(pod types.UID, now time.Time) (until time.Time, rests bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, tried := r.backoffUntil[pod]
	return until, tried && now.Before(until)
}

// observedAtLeast records a version of a budget whose status includes our evictions. Of concurrent calls, the latest version counts.
func (r *record) observedAtLeast(budget types.UID, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if order, err := resourceversion.CompareResourceVersion(version, r.observed[budget]); err == nil && order < 0 {
		return
	}
	r.observed[budget] = version
}

// isStale reports whether the budget from the watch is older than the recorded version: its status does not include our evictions yet, so
// the number of allowed disruptions is not valid.
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
