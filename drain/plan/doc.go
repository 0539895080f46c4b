// Package plan decides which Pods of the Nodes under maintenance may be evacuated now, and says why the others wait.
//
// It is a pure function of what was observed: Decide reads no clock and no API, keeps nothing between two calls, and gives
// the same answer for the same Observation, in whatever order its Pods and maintenances are listed. A restart of the
// controller therefore changes nothing.
//
// # The model
//
// A drain plan is a list of entries that is walked in order, KEP-4212's "Pod Selection":
//
//	drainPlan:
//	- {podType: Default, podPriority: 1000}                                  # entry 0
//	- {podType: Default, podPriority: 2000, podSelector: {app: postgres}}    # entry 1
//	- {podType: Default, podPriority: 2147483647}                            # entry 2
//	- {podType: DaemonSet, podPriority: 2147483647}                          # entry 3
//
// Step. Each Pod that a maintenance does not skip stands at one step of it: its type, then the order that the drain rules
// give it, then the first plan entry that selects it. A web server of priority 0 stands at (Default, 0, entry 0), a postgres
// of priority 1500 at (Default, 0, entry 1), a log shipper at (DaemonSet, 0, entry 3).
//
// Cursor. A maintenance stands at the lowest step that still holds a live Pod on any of its Nodes. It allows the Pods up to
// its cursor: here the web servers first; when the last one is gone, everywhere, postgres; the log shipper at last.
//
// Target. A Pod is targeted, that is, has an Evacuation, when some maintenance wants it to go and all maintenances of its
// Node allow it. So where maintenances overlap, the least powerful one wins.
//
// Floor. What has been reached is not taken back. A Pod that holds an Evacuation keeps it, and a Pod that appears under the
// drain targets published for its Node is targeted at once, whatever the cursors say. A maintenance that joins a Node late is
// so fast-forwarded to what older ones have reached there. Only a verdict can take a Pod out again: one that says Skip, or
// that the Pod is to complete by itself, or that isn't known.
//
// End. A maintenance without a live Pod has reached all entries of its plan, except for the Pod types that its rules skip, so that
// what is created later is a target immediately.
//
// Deadlock. Plans and rules can contradict: one maintenance wants x to go before y, the other one y before x. Maintenances
// that wait for one another in a circle would wait for ever, so the current step of the oldest in the circle goes first.
//
// # Where to read on
//
// steps.go says where a Pod stands, cursor.go where a maintenance stands, floor.go what has been reached, targets.go who may
// go, deadlock.go who goes when maintenances contradict, rows.go what is published, and messages.go and blockers.go what
// people are told. Background: KEP-4212, https://github.com/kubernetes/enhancements/issues/4212.
package plan
