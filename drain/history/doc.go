// Package history says what a drain waited for, Pod by Pod, and how long each wait took. The reasons of waits, with their kinds and the
// names of their spans, are in one table, which logs, metrics, traces, recordings and reports use.
//
//	Drain.Observe  the Pods of the selected Nodes, the time   ──►  the evacuations and steps that have ended
//	Summary        the ended evacuations of a drain           ──►  counts and the longest waits, for the log
//	Trace          an ended part of a drain                   ──►  its spans, with IDs that follow from UIDs
//
// All start times that the API records come from the API. So a manager that starts in the middle of a drain continues the same trace. It
// knows the present wait of each Pod, and the earlier ones only as a part of the evacuation.
package history
