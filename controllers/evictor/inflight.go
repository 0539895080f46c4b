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

// Limits of concurrent in-flight evictions. The response to an eviction can take long, because of admission webhooks and because the API
// server retries conflicts on a budget. The limit for each Node ensures that slow evictions on one Node do not delay those on others. Those
// that hang count only for the Pods of their Namespace, so that the webhook of one application does not delay all others.
const (
	evictionsOnNode    = 16
	evictionsInCluster = 128
	// evictionsAfterFull is how many evictions must end or hang, after the limit of the workload cluster was reached, before the next pass.
	evictionsAfterFull = 16
	// evictionsWithHanging is the limit of the workload cluster that includes the evictions that hang. A Namespace may use two thirds of what
	// the others leave. If it is alone, that is evictionsInCluster.
	evictionsWithHanging = evictionsInCluster * 3 / 2
	// hangsAfter is the age from which on an in-flight eviction hangs.
	hangsAfter = 3 * time.Second
)

// inFlightEvictions contains the in-flight evictions of one workload cluster, and the budgets whose observed status does not include them.
type inFlightEvictions struct {
	mu      sync.Mutex
	pods    map[types.UID]inFlightEviction
	budgets map[types.NamespacedName]bool // reserved budgets, whose Pods are being evicted sequentially
	awaited map[types.UID]awaitedVersion  // that the watch must reach before the status is used, by PodDisruptionBudget
	full    bool                          // the limit was reached, and fewer than evictionsAfterFull evictions have ended or hang since

	inNamespace counts // numbers of in-flight evictions
	onNode      counts // of those that do not hang
	hanging     counts // of those that hang, by Node and Namespace, see place
	answering   int    // of those that do not hang
}

// inFlightEviction is one in-flight eviction. It keeps the Pod as it was when it was admitted: if the Pod is observed to terminate before
// the new status of its budget is observed, the eviction must still count against the budget.
type inFlightEviction struct {
	pod   budgets.Pod
	begun time.Time
	hangs bool
}

// place returns the Node and the Namespace of a Pod.
func place(pod budgets.Pod) string { return pod.Node + "/" + pod.Namespace }

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
		pods: map[types.UID]inFlightEviction{}, budgets: map[types.NamespacedName]bool{}, awaited: map[types.UID]awaitedVersion{},
		inNamespace: counts{}, onNode: counts{}, hanging: counts{},
	}
}

// begin adds the eviction of a Pod. It returns false if a limit is reached, or if the eviction is already in flight.
func (f *inFlightEvictions) begin(pod budgets.Pod, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, inFlight := f.pods[pod.UID]; inFlight || !f.allowsEviction(pod) {
		return false
	}
	f.pods[pod.UID] = inFlightEviction{pod: pod, begun: now}
	f.inNamespace.add(pod.Namespace, 1)
	f.onNode.add(pod.Node, 1)
	f.answering++
	f.full = f.full || f.answering == evictionsInCluster
	return true
}

// hang records that an eviction that began at a time hangs. It returns false if the eviction has ended.
func (f *inFlightEvictions) hang(pod types.UID, begun time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, inFlight := f.pods[pod]
	if !inFlight || e.hangs || !e.begun.Equal(begun) {
		return false
	}
	f.endLoad(e.pod)
	e.hangs = true
	f.pods[pod] = e
	f.hanging.add(place(e.pod), 1)
	return true
}

// end removes the eviction of a Pod.
func (f *inFlightEvictions) end(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, inFlight := f.pods[pod]
	if !inFlight {
		return
	}
	delete(f.pods, pod)
	f.inNamespace.add(e.pod.Namespace, -1)
	if e.hangs {
		f.hanging.add(place(e.pod), -1)
	} else {
		f.endLoad(e.pod)
	}
}

// endLoad removes an eviction from those that do not hang. The caller holds the lock.
func (f *inFlightEvictions) endLoad(pod budgets.Pod) {
	f.onNode.add(pod.Node, -1)
	f.answering--
	f.full = f.full && f.answering > evictionsInCluster-evictionsAfterFull
}

// freeFor returns how many more evictions the limit of a Pod's Node allows in its Namespace, 0 if the Namespace uses its share. The caller
// holds the lock.
func (f *inFlightEvictions) freeFor(pod budgets.Pod) int {
	own := f.inNamespace[pod.Namespace]
	if others := len(f.pods) - own; own >= (evictionsWithHanging-others)*2/3 {
		return 0
	}
	return evictionsOnNode - f.onNode[pod.Node] - f.hanging[place(pod)]
}

// allowsEviction reports whether the limits allow the eviction of a Pod. The caller holds the lock.
func (f *inFlightEvictions) allowsEviction(pod budgets.Pod) bool {
	return f.answering < evictionsInCluster && f.freeFor(pod) > 0
}

// free is freeFor with the lock.
func (f *inFlightEvictions) free(pod budgets.Pod) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freeFor(pod)
}

// allows is allowsEviction with the lock.
func (f *inFlightEvictions) allows(pod budgets.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.allowsEviction(pod)
}

// isFull reports whether a pass would be wasted, since it could start no evictions, or only a few. Each in-flight eviction that gets its
// response, or hangs, enqueues the workload cluster again.
func (f *inFlightEvictions) isFull() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// all returns the in-flight evictions.
func (f *inFlightEvictions) all() []inFlightEviction {
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
