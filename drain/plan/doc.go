// Package plan decides which Pods of the Nodes under maintenance may be evacuated now, and what the others wait for.
//
// Decide is a pure function: it reads no clock and no API, keeps no state, and returns the same Decision for the same Observation,
// regardless of the order of its Pods and maintenances. So a restart of the controller changes nothing.
//
// # The model
//
// A drain plan is a list of entries that is processed in order, as in "Pod Selection" of KEP-4212:
//
//	drainPlan:
//	- {podType: Default, podPriority: 1000}                                  # entry 0
//	- {podType: Default, podPriority: 2000, podSelector: {app: postgres}}    # entry 1
//	- {podType: Default, podPriority: 2147483647}                            # entry 2
//	- {podType: DaemonSet, podPriority: 2147483647}                          # entry 3
//
// Step. Each Pod that a maintenance does not skip has one step in it: its type, then its drain order, then the first plan entry that
// selects it. The step of a web server of priority 0 is (Default, 0, entry 0), the step of a postgres of priority 1500 is (Default, 0,
// entry 1), the step of a log shipper is (DaemonSet, 0, entry 3).
//
// Cursor. The cursor of a maintenance is the lowest step that has a live Pod on any of its Nodes. A maintenance allows the Pods up to its
// cursor: in the example first the web servers, then postgres when no web server is left on any Node, finally the log shipper.
//
// Target. A Pod is a target, that is, it gets an Evacuation, if at least one maintenance drains it and all maintenances of its Node allow
// it. So where maintenances overlap, the least powerful one decides.
//
// Floor. What has been reached is not reverted. A Pod that has an Evacuation keeps it, and a Pod that appears under the published drain
// targets of its Node is a target immediately, regardless of the cursors. So a maintenance that selects a Node later is fast-forwarded to
// what older ones have reached there. Only a verdict removes a target: Skip, WaitCompleted, or undecided for another reason than that an
// object has not been read yet.
//
// End. A maintenance without a live Pod has reached all entries of its plan, except for the Pod types that its rules skip. So a Pod that is
// created later is a target immediately.
//
// Deadlock. Plans and rules can contradict: one maintenance drains x before y, another one y before x. Maintenances that wait for one
// another in a cycle would wait forever, so the current step of the oldest maintenance in the cycle is evacuated first.
//
// # Files
//
// steps.go has the steps of Pods, decide.go floors, cursors and targets, deadlock.go the cycles, rows.go what is published, messages.go and
// blockers.go the messages. Background: KEP-4212, https://github.com/kubernetes/enhancements/issues/4212.
package plan
