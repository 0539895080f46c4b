// Package evacuation decides the next action for an Evacuation: which evacuator is active, when the Pod is evicted, and when
// the Evacuation ends.
//
// All functions are pure. They don't access the API server and don't wait, and the time is an argument. A controller observes
// the Evacuation and its Pod, calls Next, applies the action to a copy of the object, and patches the difference:
//
//	action := evacuation.Next(evacuation.Input{Evacuation: e, Pod: pod, Now: now})
//	changed := e.DeepCopy()
//	action.Apply(changed, now) // then: patch the status, delete if action.Delete, patch the rest, in this order
//
// # The states
//
// There is no state field. Next computes the action from the object, its Pod and the time alone, so the action is also right
// after a restart, after a lost write, and after a write by another actor:
//
//	created ──────────────────────── no evacuator ─────────────────────┐
//	   │ (Resolve)                                                     │
//	   ▼                                                               │
//	Activate ──► AwaitEvacuator ── completed, or silent for ──┐        │
//	   ▲               ▲           the progress deadline      ▼        │
//	   └───────────────┼──── yes ◄── another evacuator, and time?      │
//	                   │                                      │ no     │
//	                   │                                      ▼        ▼
//	                   ├── fresh progress ── Evict ◄── may the Pod be evicted?
//	                   │                       │              │ no: DaemonSet, mirror
//	                   │                       ▼              ▼
//	                   └── fresh progress ── AwaitTermination
//
// And at any time:
//
//	Pod deleted                     ──► AwaitCollection, if the Pod owns the Evacuation
//	Pod deleted or finished         ──► Finish; or Fail, if the Pod was never observed
//	all instigators withdrawn       ──► Cancel; or continue as above, if an evacuator does not allow cancellation
//	Pod not observed yet            ──► AwaitPod
//	Pod returned to a cordoned Node ──► AwaitBackoff
//	Pod terminating                 ──► AwaitTermination
//	only foreign finalizers left    ──► Done
//
// # Each evacuator is activated once
//
// The order of the evacuators is total (descending priority, then class), so the position of status.activeEvacuatorClass tells
// which evacuators have been tried: all before it. The position only moves forward, and no list of tried evacuators is stored.
// The last evacuator of a Pod of a DaemonSet is the DaemonSet evacuator. It is activated again if another actor marks it as completed.
//
// # Untrusted input
//
// Tenants write annotations, progress timestamps, classes and conditions. Resolve reports and skips a malformed annotation. A
// progress timestamp in the future counts once as progress at the current time: Apply replaces it by the current time, so that it
// does not block the eviction forever. An active class that is not in spec.evacuators is ignored: the Pod is evicted, or
// the DaemonSet evacuator becomes active. If the
// conditions of evacuators fill the list, Apply removes the last one to add its own.
//
// # Writes
//
// The Evacuation of a Pod that is evicted at once takes two writes: create, and the deletion by the garbage collector, since the Pod owns
// it. A finalizer takes one more, and so does each status that says what the Pod waits for. Apply changes nothing in an Evacuation
// that is up to date.
package evacuation
