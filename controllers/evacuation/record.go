package evacuation

import (
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// watchLag is how long a Pod whose eviction was accepted, or that was gone, may still be shown as if nothing had happened. A
// watch that lags further costs a second call, which a UID and the API server make harmless.
const watchLag = 30 * time.Second

// record bridges, for one workload cluster, the moments between an eviction and its appearance in the watches, and paces those
// that were refused. It is no state of the drain: an evictor that starts without it only risks a refusal that the watches
// would have told it.
type record struct {
	flights *flights

	mu       sync.Mutex
	silences map[types.UID]int32     // how often nobody has answered
	resting  map[types.UID]time.Time // Pods that were tried, and until when they aren't tried again
	refusals map[types.UID]string    // the reasons of the last refusals
	told     map[string]bool         // the reasons that the metric of blocked Pods has; of one pass at a time
	observed map[types.UID]string    // by PodDisruptionBudget: the resourceVersion that the watch must reach to count
}

func newRecord() *record {
	return &record{
		flights: newFlights(), silences: map[types.UID]int32{}, resting: map[types.UID]time.Time{}, refusals: map[types.UID]string{},
		observed: map[types.UID]string{}, told: map[string]bool{},
	}
}

// keep drops the Pods that are neither live nor left alone at present. A Pod whose Machine is paused is not live, and must not be evicted
// again when that is resumed before the watch shows its eviction.
func (r *record) keep(live map[types.UID]bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, until := range r.resting {
		if !live[uid] && !now.Before(until) {
			delete(r.resting, uid)
			delete(r.silences, uid)
			delete(r.refusals, uid)
		}
	}
}

// unanswered counts the evictions of a Pod that nobody has answered.
func (r *record) unanswered(pod types.UID) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silences[pod]++
	return r.silences[pod]
}

// rest has a Pod left alone for a while, since its eviction was accepted, or nobody has answered.
func (r *record) rest(pod types.UID, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resting[pod] = until
	delete(r.refusals, pod)
}

// refuse has a Pod left alone for a while, since its eviction was refused.
func (r *record) refuse(pod types.UID, until time.Time, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resting[pod] = until
	r.refusals[pod] = reason
}

// refusal is why the last eviction of a Pod was refused, "" if it wasn't.
func (r *record) refusal(pod types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusals[pod]
}

// restsUntil returns the time until which some Pod is left alone. Zero: none is.
func (r *record) restsUntil() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for _, until := range r.resting {
		if last.Before(until) {
			last = until
		}
	}
	return last
}

func (r *record) rests(pod types.UID, now time.Time) (until time.Time, rests bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, tried := r.resting[pod]
	return until, tried && now.Before(until)
}

// observedAtLeast says that the budget was seen at this version, after evictions that it counts. Of two who look at once, the later
// version counts, whoever is answered first.
func (r *record) observedAtLeast(budget types.UID, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if order, err := resourceversion.CompareResourceVersion(version, r.observed[budget]); err == nil && order < 0 {
		return
	}
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
