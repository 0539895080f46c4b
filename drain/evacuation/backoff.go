package evacuation

import "time"

const (
	firstBackoff = time.Second
	maxBackoff   = 15 * time.Minute

	// jitterShare is the largest share of a backoff that jitter subtracts: enough to spread Pods that were refused at the same
	// time, and small enough to keep the exponential growth.
	jitterShare = 0.2
)

// Backoff returns how long to wait after the given number of refused evictions: 1 s, doubling up to 15 minutes. It is a fallback:
// events usually trigger the next attempt earlier, so it may be slow. It is 0 if no eviction was refused.
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

// WithJitter shortens the duration by up to a fifth. fraction is the share of that fifth: a random number in [0, 1) that the
// caller draws. Jitter never prolongs, so 15 minutes remain the maximum.
func WithJitter(d time.Duration, fraction float64) time.Duration {
	if !(fraction > 0) || d <= 0 { // true for NaN, too: no jitter
		return d
	}
	return d - time.Duration(float64(d)*jitterShare*min(fraction, 1))
}
