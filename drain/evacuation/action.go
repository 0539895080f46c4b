package evacuation

import (
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Kind is what to do with an Evacuation.
type Kind string

const (
	// AwaitPod waits until the Pod has been observed.
	AwaitPod Kind = "AwaitPod"
	// AwaitResume leaves the Pod alone: those who ask for its Evacuation are paused.
	AwaitResume Kind = "AwaitResume"
	// AwaitBackoff defers the evacuation of a replacement that returned to a cordoned Node until Action.Deadline, see package
	// replacements.
	AwaitBackoff Kind = "AwaitBackoff"
	// ResolveEvacuators stores Action.Evacuators in the spec. Ask Next again at once.
	ResolveEvacuators Kind = "Resolve"
	// Activate gives evacuator Action.Class its turn, until Action.Deadline.
	Activate Kind = "Activate"
	// AwaitEvacuator leaves evacuator Action.Class its turn, until Action.Deadline.
	AwaitEvacuator Kind = "AwaitEvacuator"
	// Evict says that the Pod is to be evicted, for Action.Reason. It is said again each time until the Pod terminates or
	// an evacuator makes progress; how often to try is up to the one who evicts, see Backoff.
	Evict Kind = "Evict"
	// AwaitTermination waits for a Pod that terminates, or that is of a type that is never evicted (Action.Reason).
	AwaitTermination Kind = "AwaitTermination"
	// Finish ends an Evacuation whose Pod is gone or finished.
	Finish Kind = "Finish"
	// Fail ends an Evacuation whose Pod never was there.
	Fail Kind = "Fail"
	// Cancel ends an Evacuation that all instigators have withdrawn from.
	Cancel Kind = "Cancel"
	// Done leaves nothing to do: the Evacuation is deleted, and waits for the finalizers of others.
	Done Kind = "Done"
)

// Action is what to do. Apply makes its changes to the Evacuation.
type Action struct {
	Kind Kind
	// Evacuators to store, for ResolveEvacuators.
	Evacuators []v1alpha1.Evacuator
	// Class is whose turn it is, for Activate and AwaitEvacuator.
	Class string
	// Deadline is when to ask again if nothing happens before. Zero: the next event tells.
	Deadline time.Time
	// Reason and Message say why, to programs and to people.
	Reason, Message string
	// Finalizers to remove, for Finish and Fail.
	Finalizers []string
	// Delete says that a DELETE of the Evacuation is due, for Finish, Fail and Cancel.
	Delete bool
}
