package evictor

import (
	"maps"
	"slices"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

// evictionsAfterFull is how many evictions must end or hang, after the limit of the workload cluster was reached, before the next pass.
const evictionsAfterFull = 16

// inFlightEvictions contains the in-flight evictions of one workload cluster, and the budgets whose observed status does not include them.
type inFlightEvictions struct {
	mu      sync.Mutex
	pods    budgets.Evictions
	budgets map[types.NamespacedName]bool // reserved budgets, whose Pods are being evicted sequentially
	awaited map[types.UID]awaitedVersion  // that the watch must reach before the status is used, by PodDisruptionBudget
	full    bool                          // the limit was reached, and fewer than evictionsAfterFull evictions have ended or hang since
}

// awaitedVersion is the resourceVersion of a budget whose status includes our evictions.
type awaitedVersion struct {
	version string
	until   time.Time
}

// awaitedTimeout is how long the version of a budget is awaited. The watch never reaches it if the API server was restored from a backup,
// where the resourceVersions are lower. If the watch lags for longer, the API server may refuse an eviction.
const awaitedTimeout = 2 * time.Minute

func newInFlightEvictions() *inFlightEvictions {
	return &inFlightEvictions{
		pods: budgets.Evictions{}, budgets: map[types.NamespacedName]bool{}, awaited: map[types.UID]awaitedVersion{},
	}
}

// begin adds the eviction of a Pod. It returns false if a limit is reached, or if the eviction is already in flight.
func (f *inFlightEvictions) begin(pod budgets.Pod, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, inFlight := f.pods[pod.UID]; inFlight || !f.pods.Allow(pod) {
		return false
	}
	f.pods[pod.UID] = budgets.Eviction{Pod: pod, Begun: now}
	f.full = f.full || f.pods.Answering() == budgets.EvictionsInCluster
	return true
}

// hang records that an eviction that began at a time hangs. It returns false if the eviction has ended.
func (f *inFlightEvictions) hang(pod types.UID, begun time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, inFlight := f.pods[pod]
	if !inFlight || e.Hangs || !e.Begun.Equal(begun) {
		return false
	}
	e.Hangs = true
	f.pods[pod] = e
	f.endFull()
	return true
}

// end removes the eviction of a Pod.
func (f *inFlightEvictions) end(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, pod)
	f.endFull()
}

// endFull ends full after enough evictions have ended or hang. The caller holds the lock.
func (f *inFlightEvictions) endFull() {
	f.full = f.full && f.pods.Answering() > budgets.EvictionsInCluster-evictionsAfterFull
}

// free is budgets.Evictions.FreeFor.
func (f *inFlightEvictions) free(pod budgets.Pod) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods.FreeFor(pod)
}

// allows is budgets.Evictions.Allow.
func (f *inFlightEvictions) allows(pod budgets.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods.Allow(pod)
}

// isFull reports whether a pass would be wasted, since it could start no evictions, or only a few. Each in-flight eviction that gets its
// response, or hangs, enqueues the workload cluster again.
func (f *inFlightEvictions) isFull() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// all returns the in-flight evictions.
func (f *inFlightEvictions) all() []budgets.Eviction {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.pods))
}

// has reports whether the eviction of a Pod is in flight.
func (f *inFlightEvictions) has(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, inFlight := f.pods[pod]
	return inFlight
}

// reserveBudget reserves a budget for the sequential eviction of its Pods. It returns false if the budget is already reserved.
func (f *inFlightEvictions) reserveBudget(budget types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.budgets[budget] {
		return false
	}
	f.budgets[budget] = true
	return true
}

func (f *inFlightEvictions) releaseBudget(budget types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.budgets, budget)
}

// awaitBudget records a version of a budget whose status includes our evictions. Of concurrent calls, the latest version counts.
func (f *inFlightEvictions) awaitBudget(budget types.UID, version string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !expectations.IsOlder(version, f.awaited[budget].version) {
		f.awaited[budget] = awaitedVersion{version: version, until: now.Add(awaitedTimeout)}
	}
}

// observeBudgets drops the awaited versions that the watch has reached, those that it does not reach in time, and those of budgets that no
// longer exist. It returns when the next one is dropped if no event follows, zero if none is awaited.
func (f *inFlightEvictions) observeBudgets(all []*budgets.Budget, now time.Time) (next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	awaited := map[types.UID]awaitedVersion{}
	for _, b := range all {
		pdb := b.PodDisruptionBudget()
		each, found := f.awaited[pdb.UID]
		if !found || !now.Before(each.until) || !expectations.IsOlder(pdb.ResourceVersion, each.version) {
			continue
		}
		awaited[pdb.UID] = each
		if next.IsZero() || each.until.Before(next) {
			next = each.until
		}
	}
	f.awaited = awaited
	return next
}

// isStale reports whether the observed status of a budget may not include our evictions yet, so that the number of allowed disruptions is
// not valid.
func (f *inFlightEvictions) isStale(pdb *policyv1.PodDisruptionBudget) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, awaited := f.awaited[pdb.UID]
	return awaited || f.budgets[client.ObjectKeyFromObject(pdb)]
}
