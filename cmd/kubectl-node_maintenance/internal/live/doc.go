// Package live shows the status of drains while it changes: as a tree on a terminal, as a line for each change elsewhere.
//
// The data is a report.Status, as in the command status without --watch. tree.go turns it into lines, progress.go adds what can be known
// only from several statuses. Both are pure. On a terminal, model.go holds the state and reacts to keys and changes, view.go draws it.
// lines.go is for everything else.
package live
