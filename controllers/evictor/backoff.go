package evictor

import (
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// watchLag is how long the watch may take to deliver the termination of a Pod. If it takes longer, the Pod is evicted a second time, which
// is harmless because of the UID precondition.
const watchLag = 30 * time.Second

// backoffs contains, for one workload cluster, the Pods that must not be evicted again yet: after an eviction that was accepted, until the
// watch delivers the termination of the Pod; after one that was refused or got no response, with a growing backoff.
type backoffs struct {
	mu       sync.Mutex
	until    map[types.UID]time.Time
	refusals map[types.UID]refusals
	failed   map[types.UID]int32     // numbers of requests that got no response
	failures map[types.UID]time.Time // times of the last evictions that were refused or got no response
	// refusedIn and refusedOnNode are the numbers of Pods whose last eviction was refused by admission, by Namespace and by Node, see
	// Refusal.IsOfAdmission.
	refusedIn, refusedOnNode counts
}

type counts map[string]int

func (c counts) add(key string, n int) {
	if c[key] += n; c[key] == 0 {
		delete(c, key)
	}
}

// refusals are those of the evictions of one Pod.
type refusals struct {
	last                   evacuation.Refusal // of the last eviction, without a reason if it was not refused
	namespace, node, pod   string             // those of the Pod, and its resourceVersion at the last request that was refused
	changes                int32              // number of refused requests in a row before which the Pod has changed
	ofAdmission, otherwise int32
}

func newBackoffs() *backoffs {
	return &backoffs{
		until: map[types.UID]time.Time{}, refusals: map[types.UID]refusals{}, failed: map[types.UID]int32{}, failures: map[types.UID]time.Time{},
		refusedIn: counts{}, refusedOnNode: counts{},
	}
}

// prune deletes the records of the Pods that are not live and whose backoff has ended. A Pod whose Machine is paused is not live, but must
// not be evicted a second time if the Machine is resumed before the watch delivers the termination of the Pod.
func (b *backoffs) prune(live map[types.UID]bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, until := range b.until {
		if !live[uid] && !now.Before(until) {
			delete(b.until, uid)
			delete(b.failed, uid)
			b.deleteRefusals(uid)
			delete(b.failures, uid)
		}
	}
}

// countFailed counts one more request for a Pod that failed without a response about it, and returns the count.
func (b *backoffs) countFailed(pod types.UID) int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[pod]++
	return b.failed[pod]
}

// endFailures ends the count of failed requests for a Pod.
func (b *backoffs) endFailures(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failed, pod)
}

// backOff defers the next eviction of a Pod after an eviction that was accepted.
func (b *backoffs) backOff(pod types.UID, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until[pod] = until
	b.deleteRefusals(pod)
	delete(b.failures, pod)
}

// fail defers the next eviction of a Pod after an eviction that got no response.
func (b *backoffs) fail(pod types.UID, until, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until[pod], b.failures[pod] = until, now
	r := b.refusals[pod]
	r.last = evacuation.Refusal{}
	b.setRefusals(pod, r)
}

// refuse defers the next eviction of a Pod after an eviction that was refused.
func (b *backoffs) refuse(pod *corev1.Pod, response evacuation.Refusal, jitter float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.refusals[pod.UID]
	if r.last.Reason != "" && r.pod != pod.ResourceVersion {
		r.changes = min(r.changes, math.MaxInt32-1) + 1
	} else {
		r.changes = 0
	}
	r.last, r.namespace, r.node, r.pod = response, pod.Namespace, pod.Spec.NodeName, pod.ResourceVersion
	count := &r.otherwise
	if response.IsOfAdmission() {
		count = &r.ofAdmission
	}
	*count = min(*count, math.MaxInt32-1) + 1
	b.setRefusals(pod.UID, r)
	r.last.InCluster, r.last.OnNode = b.refusedIn[r.namespace]*len(b.refusedIn), b.refusedOnNode[r.node]
	b.until[pod.UID], b.failures[pod.UID], b.refusals[pod.UID] = now.Add(r.last.Backoff(*count, jitter)), now, r
}

// setRefusals sets the refusals of a Pod. The caller holds the lock.
func (b *backoffs) setRefusals(pod types.UID, r refusals) {
	b.deleteRefusals(pod)
	if r.last.IsOfAdmission() {
		b.refusedIn.add(r.namespace, 1)
		b.refusedOnNode.add(r.node, 1)
	}
	b.refusals[pod] = r
}

// deleteRefusals deletes the refusals of a Pod. The caller holds the lock.
func (b *backoffs) deleteRefusals(pod types.UID) {
	if r := b.refusals[pod]; r.last.IsOfAdmission() {
		b.refusedIn.add(r.namespace, -1)
		b.refusedOnNode.add(r.node, -1)
	}
	delete(b.refusals, pod)
}

// afterChange returns the time until which the eviction of a Pod that was refused is deferred, if the Pod has changed since the request. It
// returns false if the Pod has not changed, or if the change has no effect.
func (b *backoffs) afterChange(pod *corev1.Pod) (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.refusals[pod.UID]
	backoff, effective := r.last.ChangeBackoff(r.changes)
	return b.failures[pod.UID].Add(backoff), effective && r.pod != pod.ResourceVersion
}

// failure returns the time of the last eviction of a Pod, zero unless it was refused or got no response.
func (b *backoffs) failure(pod types.UID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures[pod]
}

// refusal returns the reason why the last eviction of a Pod was refused, "" if it was not refused.
func (b *backoffs) refusal(pod types.UID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusals[pod].last.Reason
}

// of returns the time until which the eviction of a Pod is deferred, zero if it is not.
func (b *backoffs) of(pod types.UID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until[pod]
}

// last returns the latest time until which the eviction of some Pod is deferred, or zero.
func (b *backoffs) last() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	var last time.Time
	for _, until := range b.until {
		if last.Before(until) {
			last = until
		}
	}
	return last
}
