package evacuation

import "time"

const (
	firstBackoff = time.Second
	maxBackoff   = 15 * time.Minute

	// jitterShare is how much of a backoff jitter can take away: enough to part Pods that were refused together, not so
	// much that the doubling is lost.
	jitterShare = 0.2
)

// Backoff is how long to wait after the eviction was refused for the failed-th time: 1 s, doubling to 15 minutes. It is the
// safety net behind the events that say when an eviction can work, so it may be slow. Nothing has failed: nothing to wait for.
func Backoff(failed int32) time.Duration {
	if failed <= 0 {
		return 0
	}
	backoff := firstBackoff
	for i := int32(1); i < failed && backoff < maxBackoff; i++ {
		backoff *= 2
	}
	return min(backoff, maxBackoff)
}

// WithJitter takes up to a fifth of the duration away. fraction says how much of that fifth: a random number in [0, 1) that
// the caller draws. Jitter only shortens, so 15 minutes stay the maximum.
func WithJitter(d time.Duration, fraction float64) time.Duration {
	if !(fraction > 0) || d <= 0 { // written so that NaN is no jitter
		return d
	}
	return d - time.Duration(float64(d)*jitterShare*min(fraction, 1))
}
