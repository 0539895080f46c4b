// Package recording records drains, and says afterwards what they waited for.
//
//	Recorder.Observe  the objects of all clusters, the time  ──►  the lines that have changed
//	Read              the lines of a recording               ──►  History: drains, Pods, waits, budgets
//	Drain.Summary     a drain                                ──►  what happened, in sentences
//
// A recording is a file of JSON lines. Each line has a time and the present state of one object, as observed by a client that watches. The
// names of waits are those that the conditions of Evacuations and Machines use.
package recording
