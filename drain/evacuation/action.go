package evacuation

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Kind is the type of an Action.
type Kind string

const (
	// AwaitPod waits until it has been observed whether the Pod exists.
	AwaitPod Kind = "AwaitPod"
	// AwaitResume defers the evacuation because no instigator drains the Pod now, see Terms.DefersEvacuation.
	AwaitResume Kind = "AwaitResume"
	// AwaitBackoff defers the evacuation of a replacement that returned to a cordoned Node until Action.Deadline, see package
	// replacements.
	AwaitBackoff Kind = "AwaitBackoff"
	// ResolveEvacuators stores Action.Evacuators in the spec. The caller calls Next again immediately.
	ResolveEvacuators Kind = "Resolve"
	// Activate makes evacuator Action.Class the active one, and waits for it until Action.Deadline.
	Activate Kind = "Activate"
	// AwaitEvacuator waits for the active evacuator Action.Class until Action.Deadline.
	AwaitEvacuator Kind = "AwaitEvacuator"
	// Evict requests the eviction of the Pod for Action.Reason. Next returns it until the Pod terminates or the active
	// evacuator makes progress; the caller decides how often to retry, see Backoff.
	Evict Kind = "Evict"
	// AwaitTermination waits for a Pod that is terminating, or whose type is never evicted (Action.Reason).
	AwaitTermination Kind = "AwaitTermination"
	// AwaitCollection waits until Action.Deadline for the garbage collector to delete the Evacuation of a deleted Pod.
	AwaitCollection Kind = "AwaitCollection"
	// Finish ends an Evacuation whose Pod has been deleted or has finished.
	Finish Kind = "Finish"
	// Fail ends an Evacuation whose Pod was never observed and does not exist.
	Fail Kind = "Fail"
	// Cancel ends an Evacuation that all instigators have withdrawn from.
	Cancel Kind = "Cancel"
	// Done means that no action is left: the Evacuation is being deleted, and waits for the finalizers of other actors.
	Done Kind = "Done"
)

// Action is the next action for an Evacuation. Apply makes its changes to the Evacuation.
type Action struct {
	Kind Kind
	// Evacuators to store, for ResolveEvacuators.
	Evacuators []v1alpha1.Evacuator
	// Class of the evacuator to activate or to wait for, for Activate and AwaitEvacuator.
	Class string
	// Deadline is when to call Next again if no event occurs before. Zero: call Next after the next event.
	Deadline time.Time
	// Reason and Message explain the action to programs and to users.
	Reason, Message string
	// Delete is true if the Evacuation is to be deleted, for Finish, Fail and Cancel.
	Delete bool
}

const (
	firstBackoff = time.Second
	maxBackoff   = 15 * time.Minute

	// jitterShare is the largest share of a backoff that jitter subtracts: enough to spread Pods that were refused at the same
	// time, and small enough to keep the exponential growth.
	jitterShare = 0.2
)

// Backoff returns how long to wait after the given number of refused evictions: 1 s, doubling up to 15 minutes. Few evictions are refused,
// since budgets are evaluated before. It is 0 if no eviction was refused.
func Backoff(failed int32) time.Duration {
	if failed <= 0 {
		return 0
	}
	return Doubling(firstBackoff, maxBackoff, failed)
}

// Doubling returns the backoff after a number of attempts: first, doubling with each further attempt, at most limit.
func Doubling(first, limit time.Duration, attempts int32) time.Duration {
	wait := first
	for i := int32(1); i < attempts && wait < limit; i++ {
		wait *= 2
	}
	return min(wait, limit)
}

// WithJitter shortens the duration by up to a fifth. fraction is the share of that fifth: a random number in [0, 1) that the
// caller draws. Jitter never prolongs, so 15 minutes remain the maximum.
func WithJitter(d time.Duration, fraction float64) time.Duration {
	if !(fraction > 0) || d <= 0 { // true for NaN, too: no jitter
		return d
	}
	return d - time.Duration(float64(d)*jitterShare*min(fraction, 1))
}
