// Package evacuation decides how one Evacuation lives: whose turn it is, when the Pod is evicted, how it ends.
//
// It is a set of pure functions. Nothing here reads, writes or waits, and the clock is an argument. A controller observes,
// asks Next, applies the answer to a copy of the object, and patches the difference:
//
//	action := evacuation.Next(evacuation.Input{Evacuation: e, Pod: pod, Now: now})
//	changed := e.DeepCopy()
//	action.Apply(changed, now) // then: patch the status, delete if action.Delete, patch the rest, in this order
//
// # The states
//
// There is no state field. What to do follows from the object, its Pod and the clock, each time anew, so that a restart, a
// lost write or a foreign one never leads astray:
//
//	created ──────────────────────── no evacuator ─────────────────────┐
//	   │ (Resolve)                                                     │
//	   ▼                                                               │
//	Activate ──► AwaitEvacuator ── completed, or silent for ──┐        │
//	   ▲               ▲           the progress deadline      ▼        │
//	   └───────────────┼──── yes ◄── is there another one, and time?   │
//	                   │                                      │ no     │
//	                   │                                      ▼        ▼
//	                   ├── fresh progress ── Evict ◄── may the Pod be evicted?
//	                   │                       │              │ no: DaemonSet, mirror
//	                   │                       ▼              ▼
//	                   └── fresh progress ── AwaitTermination
//
// And at any time:
//
//	Pod gone or finished            ──► Finish; or Fail, if the Pod was never seen
//	no instigator left              ──► Cancel, unless an evacuator does not allow it: then all goes on as above
//	Pod not observed yet            ──► AwaitPod
//	Pod returned to a cordoned Node ──► AwaitBackoff
//	Pod terminating                 ──► AwaitTermination
//	only foreign finalizers left    ──► Done
//
// # Each evacuator has one turn
//
// The order of the evacuators is total (priority, then class), so the position of status.activeEvacuatorClass says who has
// been tried: all before it. Turns only move forward, and no list of the tried ones has to be kept.
//
// # What is trusted
//
// Annotations, progress timestamps, classes and conditions are written by tenants. A malformed annotation is reported and
// skipped. A progress timestamp in the future counts as progress now, once: it is written back as now, so that it doesn't hold
// the Pod forever. A class that nobody knows is nobody's turn. Conditions that fill the list make room for ours.
//
// # Writes
//
// A Pod that is plainly evicted costs its Evacuation four writes: create, one status write (evicting), delete, and the
// removal of the finalizers. Apply changes nothing when nothing changes.
package evacuation
