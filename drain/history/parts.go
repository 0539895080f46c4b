package history

import "time"

// Part is a part of a Machine's deletion.
type Part struct {
	// Key is its name in logs and metrics: one of a few.
	Key        string
	Start, End time.Time
	Error      string // why it was given up; empty: it was completed
	Pods       int    // the Pods that it removed, as the status counts them
}

// Beginnings of the message of a Machine whose drain has ended.
const (
	// DrainExceeded means that the drain has timed out. Without it, only the wait for volumes has.
	DrainExceeded = "The drain exceeded nodeDrainTimeoutSeconds: "
	// VolumesExceeded means that the wait for volumes has timed out, after the Node was drained.
	VolumesExceeded = "The volumes did not detach within nodeVolumeDetachTimeoutSeconds: "
	// NotDrained means that the Machine was skipped.
	NotDrained = "The Node is not drained: "
)

// Keys of the parts of a Machine's deletion.
const (
	requestPart    = "request"
	turnPart       = "turn"
	drainPart      = "drain"
	volumesPart    = "volumes"
	daemonSetsPart = "daemonSets"
	releasePart    = "release"
)

// partSpans are the names of the spans of parts.
var partSpans = map[string]string{
	requestPart: "request drain", turnPart: TurnSpan, drainPart: DrainSpan, volumesPart: VolumesSpan, daemonSetsPart: DaemonSetsSpan, releasePart: ReleaseSpan,
}

// Course has the times of a Machine's deletion. All but Releasing and the messages come from the API.
type Course struct {
	Deleted time.Time
	// Limited means that the policy limits parallel drains.
	Limited bool
	// DrainStart is the start of stage Drain, nil if it was not reached.
	DrainStart *time.Time
	// DrainEnd is the end of the drain, however it ended.
	DrainEnd time.Time
	// WaitsForVolumes means that the deletion waits for volumes after the drain.
	WaitsForVolumes bool
	// Pods is the number of Pods that were removed, as the status counts them.
	Pods int
	// DaemonSets is when the drain of the Pods of DaemonSets began, as the last part. It is zero if there is no such part.
	DaemonSets time.Time
	// Releasing is when the release of the hook began. It is zero until then.
	Releasing time.Time
	// DrainTimedOut and VolumesTimedOut are the messages of parts that were given up.
	DrainTimedOut, VolumesTimedOut string
}

// Before returns the parts up to the wait for volumes, which has just ended.
func (c Course) Before(now time.Time) []Part {
	var parts []Part
	drainEnd := later(c.DrainEnd, c.Deleted) // a Machine may be deleted after its Node has been drained in place
	drainStarted := drainEnd
	if c.DrainStart != nil {
		drainStarted = later(*c.DrainStart, c.Deleted)
	}
	switch {
	case c.Limited:
		parts = append(parts, Part{Key: turnPart, Start: c.Deleted, End: drainStarted})
	case drainStarted.Sub(c.Deleted) > resolution: // for example because the workload cluster could not be reached
		parts = append(parts, Part{Key: requestPart, Start: c.Deleted, End: drainStarted})
	}
	if c.DrainStart == nil {
		return parts
	}
	parts = append(parts, Part{Key: drainPart, Start: drainStarted, End: drainEnd, Error: c.DrainTimedOut, Pods: c.Pods})
	if c.WaitsForVolumes {
		parts = append(parts, Part{Key: volumesPart, Start: drainEnd, End: now, Error: c.VolumesTimedOut})
	}
	return parts
}

// After returns the parts after the wait for volumes.
func (c Course) After(released time.Time) []Part {
	var parts []Part
	if !c.DaemonSets.IsZero() {
		parts = append(parts, Part{Key: daemonSetsPart, Start: later(c.DaemonSets, c.Deleted), End: c.Releasing, Error: c.DrainTimedOut})
	}
	return append(parts, Part{Key: releasePart, Start: c.Releasing, End: released})
}
