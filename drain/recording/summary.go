package recording

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// leastShare is the part of a drain that a wait must take to be named, leastWait the shortest one that is.
	leastShare = 20
	leastWait  = time.Second
	// maxNamed is the maximum number of waits that a sentence names.
	maxNamed = 3
)

// Cause is what Pods waited for. Cluster is that of the Object, empty if the drains are of one Cluster.
type Cause struct {
	Cluster                 string
	Reason, Object, Message string
	NeverAllows             bool // see history.Wait
	Pods, Drains            int
	// Blocked is the time during which at least one Pod waited for it, Total the sum over all Pods.
	Blocked, Total time.Duration
}

// Name names what was waited for.
func (c Cause) Name() string {
	name := history.Wait{Reason: c.Reason, Object: c.Object, Message: c.Message}.Name()
	if c.Cluster != "" {
		name += " of Cluster " + c.Cluster
	}
	return name
}

// AreOfSeveral reports whether drains are of several Clusters, so that the name of an object does not suffice.
func AreOfSeveral(drains []Drain) bool {
	return slices.ContainsFunc(drains, func(d Drain) bool { return d.Cluster != drains[0].Cluster })
}

// Causes returns what the Pods of drains waited for, starting with what blocked longest.
func Causes(drains []Drain) []Cause {
	found, several := map[[2]string]*cause{}, AreOfSeveral(drains) // by Cluster and name
	for i, d := range drains {
		for j, pod := range d.Pods {
			for _, wait := range pod.Waits {
				if !wait.Blocks() {
					continue
				}
				key := [2]string{"", wait.Name()}
				if several && wait.Object != "" {
					key[0] = d.Cluster
				}
				c := found[key]
				if c == nil {
					c = &cause{Cause: Cause{Cluster: key[0], Object: wait.Object, Message: wait.Message}, reasons: map[string]time.Duration{}}
					found[key] = c
				}
				c.add(wait, i, j)
			}
		}
	}
	causes := make([]Cause, 0, len(found))
	for _, c := range found {
		causes = append(causes, c.end())
	}
	slices.SortFunc(causes, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Blocked, a.Blocked), cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name(), b.Name()))
	})
	return causes
}

// cause is a Cause while its waits are added, drain by drain and Pod by Pod.
type cause struct {
	Cause

	waits              []history.Wait
	reasons            map[string]time.Duration
	lastDrain, lastPod int
}

func (c *cause) add(wait history.Wait, drain, pod int) {
	if len(c.waits) == 0 || c.lastDrain != drain {
		c.Drains++
		c.lastPod = -1
	}
	if len(c.waits) == 0 || c.lastPod != pod {
		c.Pods++
	}
	c.lastDrain, c.lastPod = drain, pod
	c.waits = append(c.waits, wait)
	c.reasons[wait.Reason] += wait.For()
	c.Total += wait.For()
	c.NeverAllows = c.NeverAllows || wait.NeverAllows
}

// end completes the cause. Its reason is the one of most of its waits.
func (c *cause) end() Cause {
	c.Blocked = union(c.waits)
	for _, reason := range slices.Sorted(maps.Keys(c.reasons)) {
		if c.Reason == "" || c.reasons[reason] > c.reasons[c.Reason] {
			c.Reason = reason
		}
	}
	return c.Cause
}

// union returns the time that is covered by at least one wait.
func union(waits []history.Wait) time.Duration {
	sorted := slices.Clone(waits)
	slices.SortFunc(sorted, func(a, b history.Wait) int { return a.Start.Compare(b.Start) })
	var total time.Duration
	var end time.Time
	for _, wait := range sorted {
		start := wait.Start
		if start.Before(end) {
			start = end
		}
		if wait.End.After(start) {
			total += wait.End.Sub(start)
			end = wait.End
		}
	}
	return total
}

// Title names the drain.
func (d *Drain) Title() string {
	if d.Machine == "" {
		return "NodeMaintenance " + d.Maintenance
	}
	return "Machine " + d.Machine
}

// Took returns how long the drain took, until the end of the recording if it had not ended.
func (d *Drain) Took() time.Duration {
	switch {
	case d.Start.IsZero():
		return 0
	case d.End.IsZero():
		return cmp.Or(d.Cancelled, d.ended).Sub(d.Start)
	default:
		return max(d.End.Sub(d.Start), 0)
	}
}

// isCancelled reports whether the maintenance was completed before the Nodes were drained.
func (d *Drain) isCancelled() bool { return d.End.IsZero() && !d.Cancelled.IsZero() }

// Summary says in sentences how the drain went.
func (d *Drain) Summary() []string {
	var sentences []string
	first := d.result()
	if waits := d.longestWaits(); len(waits) > 0 {
		first += "; " + strings.Join(waits, ", ")
	}
	sentences = append(sentences, first+".")
	for _, phase := range d.Phases {
		if took := phase.For(); took >= leastWait && isWait(phase.Reason) {
			sentences = append(sentences, phaseSentence(phase.Reason, took))
		}
	}
	if more := d.afterEnd(); more != "" {
		sentences = append(sentences, more)
	}
	if missing := d.late.sentence(); missing != "" {
		sentences = append(sentences, missing)
	}
	refused := int32(0)
	for i := range d.Pods {
		refused += d.Pods[i].Refusals
	}
	if refused > 0 {
		sentences = append(sentences, "The API server refused "+text.Count(refused, "eviction")+".")
	}
	return sentences
}

// isWait reports whether a Machine with this reason waits.
func isWait(reason string) bool {
	switch reason {
	case "", v1alpha1.ReasonMachineDraining, v1alpha1.ReasonMachineDrained, v1alpha1.ReasonMachineCordoned, v1alpha1.ReasonMachineAnnounced,
		v1alpha1.ReasonMachineCompleted, v1alpha1.ReasonSkipped, v1alpha1.ReasonTimedOut,
		v1alpha1.ReasonHookRemoved:
		return false
	default:
		return true
	}
}

func phaseSentence(reason string, took time.Duration) string {
	switch reason {
	case v1alpha1.ReasonWaitingForTurn:
		return "The Machine waited " + Duration(took) + " for other drains of the Cluster."
	case v1alpha1.ReasonWaitingForVolumeDetach:
		return "The Machine waited " + Duration(took) + " for volumes to detach."
	case v1alpha1.ReasonWaitingForWorkloadCluster:
		return "The Machine waited " + Duration(took) + " for a connection to the workload cluster."
	default:
		return "The condition of the Machine had the reason " + reason + " for " + Duration(took) + "."
	}
}

func (d *Drain) result() string {
	pods := text.Count(len(d.Pods), "Pod")
	result := d.lastResult()
	switch {
	case d.before == notDrained, d.before == notRecorded && result.Reason != "":
		return d.resultOf(result, pods)
	case d.before == notRecorded && d.Start.IsZero():
		return "No result was recorded (" + pods + ")"
	case d.before == notRecorded:
		return fmt.Sprintf("No result was recorded in %s (%s)", Duration(d.Took()), pods)
	case d.Start.IsZero() && d.End.IsZero():
		return "Not drained: the drain did not start during the recording"
	case d.Start.IsZero():
		return "Drained; the start of the drain was not recorded (" + pods + ")"
	case d.isCancelled():
		return fmt.Sprintf("Not drained after %s, when the maintenance was ended (%s)", Duration(d.Took()), pods)
	case d.End.IsZero():
		return fmt.Sprintf("Not drained after %s, when the recording ended (%s)", Duration(d.Took()), pods)
	default:
		return fmt.Sprintf("Drained in %s (%s)", Duration(d.Took()), pods)
	}
}

// resultOf is result for a drain that has another result than Drained, and whose Node was not drained before, as far as that is known.
func (d *Drain) resultOf(result history.Wait, pods string) string {
	after := ""
	switch {
	case !d.Start.IsZero():
		after = fmt.Sprintf(" after %s (%s)", Duration(d.Took()), pods)
	case d.before == notDrained && len(d.Pods) == 0:
		after = " before the drain started"
	}
	switch {
	case result.Reason == v1alpha1.ReasonHookRemoved:
		return "Another actor removed the hook" + after + ", and Cluster API drained the Node"
	case result.Reason == v1alpha1.ReasonSkipped && d.before == notRecorded:
		return "Skipped" + after + ": " + strings.TrimPrefix(result.Message, history.NotDrained)
	case result.Reason == v1alpha1.ReasonSkipped:
		return "Skipped" + after + ": " + result.Message
	case d.before == notRecorded:
		return "The wait for volumes timed out" + after
	default:
		return "The drain timed out" + after
	}
}

// afterEnd says what happened after the Node was drained, or that it is not known whether it was. It is empty if neither applies.
func (d *Drain) afterEnd() string {
	result := d.lastResult()
	switch {
	case d.before == notRecorded && result.Reason == "":
		return "It is not known whether the Node was drained."
	case d.before == notRecorded:
		return "It is not known whether the Node was drained before."
	case d.before != wasDrained:
		return ""
	case result.Reason == v1alpha1.ReasonHookRemoved:
		return "Another actor removed the hook afterwards."
	case result.Reason == v1alpha1.ReasonSkipped:
		return "The Machine was skipped afterwards: " + strings.TrimPrefix(result.Message, history.NotDrained) + "."
	default:
		return "The volumes did not detach before the timeout."
	}
}

func (d *Drain) longestWaits() []string {
	var waits []string
	for _, cause := range Causes([]Drain{*d}) {
		if cause.Blocked < leastWait || cause.Blocked < d.Took()/leastShare || len(waits) == maxNamed {
			break
		}
		waits = append(waits, fmt.Sprintf("%s of that waiting for %s", Duration(cause.Blocked), cause.Name()))
	}
	return waits
}

// Summary says in sentences how all drains went.
func (h *History) Summary() []string {
	if len(h.Drains) == 0 {
		return h.outcome()
	}
	ended, undrained, unknown, pods := 0, 0, 0, 0
	first, last := h.Drains[0].begin(), h.Drains[0].begin()
	for i := range h.Drains {
		d := &h.Drains[i]
		pods += len(d.Pods)
		end := cmp.Or(d.End, d.Cancelled)
		if end.IsZero() {
			end = h.End
		} else {
			ended++
		}
		switch {
		case d.before == notRecorded:
			unknown++
		case d.before == notDrained, d.isCancelled():
			undrained++
		}
		if end.After(last) {
			last = end
		}
	}
	drains := fmt.Sprintf("%d of %d drains ended", ended, len(h.Drains))
	if undrained > 0 {
		drains += fmt.Sprintf(", %d of them before the Node was drained", undrained)
	}
	if unknown > 0 {
		drains += fmt.Sprintf(", of %d it is not known whether the Node was drained", unknown)
	}
	sentences := []string{fmt.Sprintf("%s; %s from the first start to the last end; %s.", drains, Duration(last.Sub(first)), text.Count(pods, "Pod"))}
	if causes := Causes(h.Drains); len(causes) > 0 && causes[0].Blocked >= leastWait {
		sentences = append(sentences, fmt.Sprintf("What blocked longest: %s, for %s (%s).", causes[0].Name(), Duration(causes[0].Blocked),
			text.Count(causes[0].Pods, "Pod")))
	}
	return slices.Concat(sentences, h.verdict(), h.outcome())
}

// Duration writes a duration for people: "13 min 20 s".
func Duration(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
	case d < time.Minute:
		return itoa(int(d.Round(time.Second).Seconds())) + " s"
	}
	seconds := int(d.Round(time.Second).Seconds())
	if seconds < 3600 {
		return two(seconds/60, "min", seconds%60, "s")
	}
	return two(seconds/3600, "h", seconds%3600/60, "min")
}

func two(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return itoa(a) + " " + unitA
	}
	return itoa(a) + " " + unitA + " " + itoa(b) + " " + unitB
}

func itoa(n int) string { return strconv.Itoa(n) }
