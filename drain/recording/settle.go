package recording

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

// settle sets how a drain ended. End is when the Nodes were drained, zero if that was not observed. isKnown means that they were not
// drained if it was not observed.
func (d *Drain) settle(isKnown bool) {
	at := lastOf(d.Phases, results...)
	if at < 0 {
		d.settleWithoutResult()
		return
	}
	result := d.Phases[at]
	if result.Reason == v1alpha1.ReasonMachineDrained {
		if d.End.IsZero() && (!d.Deleted.IsZero() || d.Start.IsZero()) { // otherwise Pods were created since
			d.End = cmp.Or(d.drained, result.Start)
		}
		return
	}
	if d.End.IsZero() || d.End.After(result.Start) { // Pods were created after the result
		d.End = d.drained
	}
	drained := lastOf(d.Phases[:at], v1alpha1.ReasonMachineDrained)
	switch {
	case strings.HasPrefix(result.Message, history.DrainExceeded):
		d.before = notDrained
	case strings.HasPrefix(result.Message, history.VolumesExceeded):
		d.before, d.End = wasDrained, cmp.Or(d.End, d.endBefore(at))
		return
	case !d.End.IsZero():
		d.before = wasDrained
		return
	case isKnown:
		d.before = notDrained
	case drained >= 0:
		d.before, d.End = wasDrained, d.Phases[drained].Start
		return
	default:
		d.before = notRecorded
	}
	d.End = d.endBefore(at)
}

// settleWithoutResult is settle for a drain without a result. If the Machine was deleted, it had one that was not observed, unless the
// maintenance had been ended before.
func (d *Drain) settleWithoutResult() {
	isCancelled := !d.Cancelled.IsZero() && d.Cancelled.Before(d.Gone)
	if d.End.IsZero() && !d.Deleted.IsZero() && !d.Gone.IsZero() && !isCancelled {
		d.before, d.End = notRecorded, d.Gone
	}
}

// results are the reasons of the condition of a Machine when its drain has ended.
var results = []string{v1alpha1.ReasonMachineDrained, v1alpha1.ReasonTimedOut, v1alpha1.ReasonHookRemoved, v1alpha1.ReasonSkipped}

// lastOf returns the last phase with one of the reasons, -1 if there is none, or if the Node was to be drained again after it.
func lastOf(phases []history.Wait, reasons ...string) int {
	for i, phase := range slices.Backward(phases) {
		switch {
		case slices.Contains(reasons, phase.Reason):
			return i
		case phase.Reason == v1alpha1.ReasonMachineDraining, phase.Reason == v1alpha1.ReasonWaitingForTurn:
			return -1
		}
	}
	return -1
}

// lastResult returns the last result of a drain in the condition of the Machine. Its reason is empty if the drain has no result.
func (d *Drain) lastResult() history.Wait {
	if at := lastOf(d.Phases, results...); at >= 0 {
		return d.Phases[at]
	}
	return history.Wait{}
}

// endBefore returns the end of a drain whose Nodes were not drained, and whose result is the phase at an index. If the drain has timed out,
// the Machine may then have waited for volumes before it had the result.
func (d *Drain) endBefore(at int) time.Time {
	result := d.Phases[at]
	if result.Reason != v1alpha1.ReasonTimedOut || at == 0 || d.Start.IsZero() || d.before == notRecorded {
		return result.Start
	}
	if last := d.Phases[at-1]; last.Reason == v1alpha1.ReasonWaitingForVolumeDetach {
		return last.Start
	}
	return d.Phases[at-1].End
}
