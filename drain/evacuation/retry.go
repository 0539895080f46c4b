package evacuation

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

const (
	// maxAdmissionBackoff is the maximum backoff after a refusal of admission. No event says that a webhook or a policy would allow the
	// eviction now. Cluster API's drain retries after 20 s.
	maxAdmissionBackoff = 30 * time.Second
	// maxRetryAfter limits for how long a response can defer the next attempt.
	maxRetryAfter = time.Minute
	// promptResponse is how long a response takes at most that is no timeout of an admission webhook.
	promptResponse = time.Second

	// refusedPerSecond, refusedInCluster and refusedOnNode are what the evictions of all Pods that admission refuses use together, so that
	// they do not delay the evictions of other Pods: requests per second to a workload cluster, and concurrent evictions there and on each
	// Node. They are a fifth of the rate and a fourth of the concurrent evictions that the evictor allows by default.
	refusedPerSecond, refusedInCluster, refusedOnNode = 20, 32, 4
)

// denials are the reasons of refusals by admission, whose decision may depend on the Pod.
var denials = sets.New(v1alpha1.ReasonWebhookRefused, v1alpha1.ReasonAdmissionPolicyRefused, v1alpha1.ReasonAdmissionRefused)

// ofAdmission are the reasons of refusals that the API server decides before it evaluates PodDisruptionBudgets.
var ofAdmission = denials.Clone().Insert(v1alpha1.ReasonAdmissionFailed, v1alpha1.ReasonEvictionForbidden, v1alpha1.ReasonAPIServerBusy)

// Refusal is the response to an eviction that was refused.
type Refusal struct {
	// Reason is one of the reasons of the condition Evicting.
	Reason string
	// RetryAfter is how long the response asks to wait, 0 if it does not ask for that.
	RetryAfter time.Duration
	// Took is the time from the request to the response.
	Took time.Duration
	// OnNode is how many Pods of the Node were refused by admission last, including this one. InCluster is how many would be in the workload
	// cluster if each Namespace that has such Pods had as many as that of this one: so each of these Namespaces has the same share.
	InCluster, OnNode int
}

// IsOfAdmission reports whether admission, authorization or a limit of requests refused the eviction. It returns false if the call of a
// webhook failed after a long time: many requests that hang would use up the concurrent evictions of the workload cluster if they were
// repeated as often.
func (r Refusal) IsOfAdmission() bool {
	return ofAdmission.Has(r.Reason) && (r.Reason != v1alpha1.ReasonAdmissionFailed || r.Took <= promptResponse)
}

// Backoff returns how long to wait after a number of refusals of the same Pod for which IsOfAdmission returns the same as for this one,
// which is the last of them: 1 s, doubling up to 15 minutes, or up to 30 s if the refusal is of admission. In that case it returns at least
// its share, and at least RetryAfter, but for RetryAfter at most a minute. For jitter, see WithJitter.
func (r Refusal) Backoff(refusals int32, jitter float64) time.Duration {
	if !r.IsOfAdmission() {
		return WithJitter(Backoff(refusals), jitter)
	}
	return max(WithJitter(max(min(Backoff(refusals), maxAdmissionBackoff), r.share()), jitter), min(r.RetryAfter, maxRetryAfter))
}

// ChangeBackoff returns how long to wait after a refusal if the Pod changes. It returns false if the change has no effect on the next
// attempt. A webhook may change the Pod at each request, so each refusal in a row before which the Pod has changed doubles the backoff. The
// share counts only if it exceeds the longest backoff: an operator changes the Pod when it may be evicted, so few of these attempts are
// refused.
func (r Refusal) ChangeBackoff(changes int32) (time.Duration, bool) {
	if !denials.Has(r.Reason) {
		return 0, false
	}
	if share := r.share(); share > maxAdmissionBackoff {
		return share, true
	}
	return min(Backoff(min(changes, math.MaxInt32-1)+1), maxAdmissionBackoff), true
}

// share returns the minimum backoff, at most 15 minutes, with which the attempts for all Pods that admission refuses together stay within
// refusedPerSecond, refusedInCluster and refusedOnNode. It assumes that each of these Pods waits as long.
func (r Refusal) share() time.Duration {
	rate := time.Duration(r.InCluster) * time.Second / refusedPerSecond
	return min(max(rate, time.Duration(r.InCluster)*r.Took/refusedInCluster, time.Duration(r.OnNode)*r.Took/refusedOnNode), maxBackoff)
}
