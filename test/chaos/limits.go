package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// release is the removal of the hook from a Machine that was being deleted.
type release struct {
	machine string
	// before is the last version with the hook, after the first one without it.
	before *clusterv1.Machine
	after  stored[*clusterv1.Machine]
	// The removal was requested at or after the one time, and stored at or before the other one.
	requested, stored time.Time
}

func (r release) String() string {
	message, _, _ := strings.Cut(describe(conditionOf(r.before)), "\n")
	return fmt.Sprintf("%s release of Machine %s (%s)", r.stored.Format("15:04:05.000"), r.machine, message)
}

// allReleases returns the removals of the hook by any actor, by the versions of the Machines: the audit log has no request that was cut off
// by the death of its API server.
func (h *History) allReleases() []release {
	requests := h.Management.byManager().Resource("machines").Where(fleet.ReleasesHook)
	var all []release
	for _, versions := range timelines[*clusterv1.Machine](&h.Management, machineKeys) {
		for i, version := range versions {
			if i == 0 || !isHeld(versions[i-1]) || !version.exists || machinedrain.HasHook(version.object) {
				continue
			}
			each := release{machine: version.object.Name, before: versions[i-1].object, after: version}
			each.requested, each.stored = h.Management.Clock.period(version.revision)
			for _, request := range requests.Named(version.object.Namespace, version.object.Name) {
				if !request.Requested.After(each.stored) && !request.Answered.Before(each.requested) {
					each.requested = request.Requested
				}
			}
			all = append(all, each)
		}
	}
	return all
}

// exceptions are the releases whose Nodes need not be drained.
var exceptions = []struct {
	name    string
	applies func(*History, release) bool
}{
	{"M53: another actor removes the hook", func(h *History, r release) bool { return h.Unhooked[r.machine] }},
	{"M16: clusterctl moves the Machine", func(_ *History, r release) bool { return isMovedAway(r.after) }},
	{"M10, M54: the Cluster is being deleted", func(h *History, r release) bool {
		return !h.ClusterDeleted.IsZero() && !r.stored.Before(h.ClusterDeleted)
	}},
	{"M10, M54: the Node does not exist", func(h *History, r release) bool {
		_, exists := h.nodeAt(r)
		return !exists || h.wasDeleted(r)
	}},
	{"M81: the Node is out of service", func(h *History, r release) bool {
		node, _ := h.nodeAt(r)
		return node != nil && isUnreachable(node) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	}},
}

// nodeAt returns the Node of a Machine, which has the same name, at the time of its release.
func (h *History) nodeAt(r release) (*corev1.Node, bool) {
	return timelines[*corev1.Node](&h.Workload, nodeKeys)[r.machine].at(h.Workload.Clock.Before(r.requested))
}

// wasDeleted returns whether the Node of a Machine was deleted before the release was requested. The audit log knows that at once, the
// revisions after a moment.
func (h *History) wasDeleted(r release) bool {
	return slices.ContainsFunc(h.Workload.Audit.Verb("delete").Resource("nodes").Named("", r.machine).Succeeded(), func(e controlplane.Event) bool {
		return e.Requested.Before(r.requested)
	})
}

// releases returns the releases that none of the exceptions concerns: by our manager, from Machines whose Nodes must be drained.
func (h *History) releases() []release {
	return slices.DeleteFunc(h.allReleases(), func(r release) bool {
		for _, exception := range exceptions {
			if exception.applies(h, r) {
				return true
			}
		}
		return false
	})
}

// limits says when the time limits of Machines end at the earliest, by what was stored. What the manager records about starts does not
// count: a wrong record must not excuse a release.
type limits struct {
	*History
	machines     map[string]timeline[*clusterv1.Machine] // of the namespace
	nodes        map[string]timeline[*corev1.Node]
	maintenances map[string][]timeline[*v1alpha1.NodeMaintenance] // by the Machine
	// spans has the spans of each Machine, in their order.
	spans map[string][]span
	// started is when the drain of a Machine began according to the first version of its NodeMaintenance in stage Drain or the manager's
	// record. The drains of other Machines begin later because of it, so a wrong record excuses no release.
	started map[string]time.Time
	// recorded has the Machines of which only the manager's record says that the drain has begun.
	recorded map[string]bool
}

// span is the time from the deletion of a Machine, or from when hooks of other owners hold its drain, until they hold it again. The drain
// timeout counts only in the last one (M115).
type span struct {
	since time.Time
	// from is when the manager may have observed the deletion, or the end of the hold, at the earliest.
	from time.Time
	// began is when the drain may have begun at the earliest: see turns. It is zero if it may not have begun.
	began time.Time
}

// spanAt returns the span of a Machine at a time, the zero value if it was not deleted.
func (l *limits) spanAt(name string, at time.Time) span {
	var found span
	for _, each := range l.spans[name] {
		if !each.since.After(at) {
			found = each
		}
	}
	return found
}

// limits returns the limits of the history, which does not change from then on.
func (h *History) limits() *limits {
	if h.timeLimits == nil {
		h.timeLimits = h.newLimits()
	}
	return h.timeLimits
}

func (h *History) newLimits() *limits {
	l := &limits{
		History: h, machines: map[string]timeline[*clusterv1.Machine]{}, nodes: timelines[*corev1.Node](&h.Workload, nodeKeys),
		maintenances: map[string][]timeline[*v1alpha1.NodeMaintenance]{}, spans: map[string][]span{},
		started: map[string]time.Time{}, recorded: map[string]bool{},
	}
	for key, versions := range timelines[*clusterv1.Machine](&h.Management, machineKeys) {
		l.machines[strings.TrimPrefix(key, h.Namespace+"/")] = versions
	}
	for _, versions := range timelines[*v1alpha1.NodeMaintenance](&h.Workload, maintenanceKeys) {
		owners := map[string]bool{}
		for _, version := range versions {
			if version.exists {
				owners[strings.TrimPrefix(version.object.Annotations[v1alpha1.OwnerMachineAnnotation], h.Namespace+"/")] = true
			}
		}
		for machine := range owners {
			l.maintenances[machine] = append(l.maintenances[machine], versions)
		}
	}
	for name := range l.machines {
		l.start(name)
	}
	l.turns()
	return l
}

// start finds the start of the drain of a Machine.
func (l *limits) start(name string) {
	earlier := func(at time.Time) bool { return l.started[name].IsZero() || at.Before(l.started[name]) }
	for _, version := range l.machines[name] {
		if at := l.Management.Clock.timeOf(version.revision); version.exists && version.object.Annotations[v1alpha1.DrainStartedAnnotation] != "" && earlier(at) {
			l.started[name], l.recorded[name] = at, true
		}
	}
	for _, versions := range l.maintenances[name] {
		for _, version := range versions {
			if version.exists && version.object.Spec.Stage == v1alpha1.StageDrain {
				if at := l.Workload.Clock.timeOf(version.revision); earlier(at) {
					l.started[name] = at
				}
				l.recorded[name] = false
			}
		}
	}
}

const (
	// resolution is that of turns.
	resolution = 200 * time.Millisecond
	// settling is how long the manager waits for Machines that were deleted in the same second, less the rounding of deletionTimestamps.
	settling = time.Second
	// rounding is how much earlier a limit may end than the stored times say: records have whole seconds.
	rounding = 2 * time.Second
)

// turns finds the earliest time at which the drain of each deleted Machine may have begun. From then on its drain timeout counts, whatever
// the drain waits for (M6, M36, M39, M52), but no wait for a turn (M37) and no time without a running manager.
func (l *limits) turns() {
	if len(l.Management.Clock) == 0 {
		return
	}
	end := l.Management.Clock[len(l.Management.Clock)-1].Until
	m := moment{}
	for at := l.Management.Clock.begin(); !at.After(end); at = at.Add(resolution) {
		if l.isDown(at) && l.isDown(at.Add(-rounding)) { // the manager may have granted a turn a moment before it was stopped
			continue
		}
		m = l.momentAt(at, m)
		for _, name := range m.order {
			if len(l.spans[name]) == 0 {
				l.spans[name] = []span{{since: at, from: at}}
			}
			last := &l.spans[name][len(l.spans[name])-1]
			switch isHooked := l.isHookedAt(name, at); {
			case isHooked && last.began.IsZero():
				last.from = at
			case isHooked:
				l.spans[name] = append(l.spans[name], span{since: at, from: at})
			case last.began.IsZero() && l.mayBegin(m, name):
				last.began = at
			}
		}
	}
}

// moment has the revisions around a time.
type moment struct {
	at time.Time
	// The clusters have stored these revisions at the time: at least the first ones, and not more than the last ones.
	management, workload [2]int64
	// recent revisions of the workload cluster may be what the manager has observed last.
	recent int64
	// order has the Machines that may be held, in the order in which they get turns.
	order []string
	// requested has the times of their deletions.
	requested map[string]time.Time
}

// momentAt returns the moment of a time. It shares what has not changed with that of an earlier time.
func (l *limits) momentAt(at time.Time, former moment) moment {
	m := moment{at: at, recent: l.Workload.Clock.Before(at.Add(-lag)), requested: map[string]time.Time{}}
	m.management = [2]int64{l.Management.Clock.Before(at), l.Management.Clock.After(at)}
	m.workload = [2]int64{l.Workload.Clock.Before(at), l.Workload.Clock.After(at)}
	if m.management == former.management {
		m.order, m.requested = former.order, former.requested
		return m
	}
	for name, versions := range l.machines {
		for _, state := range versions.during(m.management[0], m.management[1]) {
			if isHeld(state) {
				m.requested[name] = state.object.DeletionTimestamp.Time
			}
		}
	}
	m.order = slices.SortedFunc(maps.Keys(m.requested), m.compare)
	return m
}

func (m moment) compare(a, b string) int {
	return cmp.Or(m.requested[a].Compare(m.requested[b]), cmp.Compare(a, b))
}

// mayBegin returns whether the drain of a Machine may begin. Other Machines count only if the manager must have observed them.
func (l *limits) mayBegin(m moment, name string) bool {
	switch {
	case l.MaxParallelDrains == 0 || wasGone(l.nodes[name], m.recent, m.workload[1]):
		return true
	case m.at.Add(l.ClockOff).Before(m.requested[name].Add(settling)):
		return false
	}
	before, latest := 0, m.requested[name]
	for _, other := range m.order {
		if other == name || !l.delays(m, other, name) {
			continue
		}
		before++
		if start := l.countsFrom(m, other); start.After(latest) {
			latest = start
		}
	}
	timeout := l.timeout(name, m.at, drainTimeout)
	return before < l.MaxParallelDrains || timeout > 0 && !m.at.Add(l.ClockOff).Before(latest.Add(timeout))
}

// delays returns whether a Machine delays another one: it drains, or has waited longer. It does not while hooks of other owners hold it.
func (l *limits) delays(m moment, name, other string) bool {
	isAhead := m.compare(name, other) < 0 && !l.mayBePaused(m, name) && !l.isHookedIn(name, m.at.Add(-lag), m.at)
	return l.contends(m, other, name) && (isAhead || l.drains(m, name))
}

// countsFrom returns when the drain of a Machine has begun, the zero time if the manager may not know that. A drain without a drain timeout
// counts while its NodeMaintenance exists (M159), and one that was held needs another turn.
func (l *limits) countsFrom(m moment, name string) time.Time {
	hasTurn := l.drains(m, name) || l.timeout(name, m.at, drainTimeout) > 0 && !l.isHookedIn(name, time.Time{}, m.at)
	if start := l.started[name]; hasTurn && !start.After(m.at.Add(-appearance)) {
		return start
	}
	return time.Time{}
}

// contends returns whether a Machine counts for the turn of another one: it is held, its Node exists and has for some time, and
// the manager has observed its deletion if it has observed that of the other one.
func (l *limits) contends(m moment, name, other string) bool {
	if wasGone(l.nodes[other], m.recent, m.workload[1]) {
		return false
	}
	known := l.heldSince(other) <= max(l.heldSince(name), l.Management.Clock.Before(m.at.Add(-appearance)))
	return known && !slices.ContainsFunc(l.machines[other].during(m.management[0], m.management[1]), isNotHeld)
}

// mayBePaused returns whether the manager may have observed that a Machine is paused. A paused Machine that waits delays no other one.
func (l *limits) mayBePaused(m moment, name string) bool {
	since := l.Management.Clock.Before(m.at.Add(-appearance))
	return slices.ContainsFunc(l.machines[name].during(since, m.management[1]), func(s stored[*clusterv1.Machine]) bool {
		return s.exists && metav1.HasAnnotation(s.object.ObjectMeta, clusterv1.PausedAnnotation)
	})
}

// isHookedIn returns whether a hook of another owner may have held the drain of a Machine in a period.
func (l *limits) isHookedIn(name string, from, until time.Time) bool {
	return slices.ContainsFunc(l.machines[name].during(l.Management.Clock.Before(from), l.Management.Clock.After(until)), isHooked)
}

// isHookedAt returns whether the manager must have observed that a hook of another owner holds the drain of a Machine.
func (l *limits) isHookedAt(name string, at time.Time) bool {
	since := l.observedSince(at, appearance)
	if l.hadFault(since, at, clusterPaused) || l.isHindered(since, at) || l.managerStarted(since, at) {
		return false
	}
	states := l.machines[name].during(l.Management.Clock.Before(since), l.Management.Clock.After(at))
	return len(states) > 0 && !slices.ContainsFunc(states, func(s stored[*clusterv1.Machine]) bool {
		return !isHooked(s) || metav1.HasAnnotation(s.object.ObjectMeta, clusterv1.PausedAnnotation)
	})
}

func isHooked(m stored[*clusterv1.Machine]) bool { return m.exists && isHeldByHooks(m.object) }

// heldSince returns the revision of the deletion of a Machine.
func (l *limits) heldSince(name string) int64 {
	for _, version := range l.machines[name] {
		if isHeld(version) {
			return version.revision
		}
	}
	return math.MaxInt64
}

// drains returns whether the drain of a Machine has begun, and has been observed by the manager. One that was held needs another turn.
func (l *limits) drains(m moment, name string) bool {
	if l.isHookedIn(name, time.Time{}, m.at) {
		return false
	}
	since := l.Workload.Clock.Before(m.at.Add(-appearance))
	return slices.ContainsFunc(l.maintenances[name], func(versions timeline[*v1alpha1.NodeMaintenance]) bool {
		states := versions.during(since, m.workload[1])
		return len(states) > 0 && states[0].revision <= since && !slices.ContainsFunc(states, func(s stored[*v1alpha1.NodeMaintenance]) bool {
			return !s.exists || s.object.Spec.Stage != v1alpha1.StageDrain
		})
	})
}

// wasReconciled returns whether the manager has reconciled a NodeMaintenance of a Machine by a time, and so may know that the Machine waits
// for a turn.
func (l *limits) wasReconciled(name string, at time.Time) bool {
	until := l.Workload.Clock.Before(at)
	return slices.ContainsFunc(l.maintenances[name], func(versions timeline[*v1alpha1.NodeMaintenance]) bool {
		return slices.ContainsFunc(versions, func(s stored[*v1alpha1.NodeMaintenance]) bool {
			return s.revision <= until && s.exists && len(s.object.Status.StageStatuses) > 0
		})
	})
}

func drainTimeout(m *clusterv1.Machine) *int32 { return m.Spec.Deletion.NodeDrainTimeoutSeconds }

func volumeTimeout(m *clusterv1.Machine) *int32 {
	return m.Spec.Deletion.NodeVolumeDetachTimeoutSeconds
}

// timeout returns the shortest timeout of a Machine that the manager may have observed at a time, 0 if there is none.
func (l *limits) timeout(name string, at time.Time, of func(*clusterv1.Machine) *int32) time.Duration {
	shortest := time.Duration(0)
	for _, state := range l.machines[name].during(l.Management.Clock.Before(at.Add(-lag)), l.Management.Clock.After(at)) {
		if !state.exists || ptr.Deref(of(state.object), 0) == 0 {
			continue
		}
		if timeout := time.Duration(*of(state.object)) * time.Second; shortest == 0 || timeout < shortest {
			shortest = timeout
		}
	}
	return shortest
}

// drainMayEnd returns when the drain of a Machine may time out at the earliest, as observed at a time. Before that, it may not: not has the
// reason.
func (l *limits) drainMayEnd(name string, at time.Time) (end time.Time, not string) {
	timeout := l.timeout(name, at, drainTimeout)
	span := l.spanAt(name, at)
	began := span.began
	if !l.wasReconciled(name, at) {
		began = span.from
	}
	switch {
	case timeout == 0:
		return end, "the Machine has no drain timeout"
	case began.IsZero():
		return end, "its drain could not begin, since other Machines were before it (maxParallelDrains)"
	case l.tooSoonAfter(name, timeout) != "":
		return end, "it got a turn less than its drain timeout after Machine " + l.tooSoonAfter(name, timeout)
	}
	return began.Add(timeout), ""
}

// tooSoonAfter returns another Machine that got a turn within the drain timeout before a Machine did, while the drains of neither could be
// observed to begin, "" if no other Machine did. One that was released before the turn, which is recorded in whole seconds, does not count,
// nor does one whose Node no longer existed.
func (l *limits) tooSoonAfter(name string, timeout time.Duration) string {
	if l.MaxParallelDrains == 0 || !l.recorded[name] {
		return ""
	}
	at := l.started[name]
	for other, start := range l.started {
		isEarlier := cmp.Or(start.Compare(at), cmp.Compare(other, name)) < 0
		if !isEarlier || l.isHookedIn(other, time.Time{}, at) || !l.recorded[other] || !at.Before(start.Add(timeout-rounding)) ||
			wasGone(l.nodes[other], l.Workload.Clock.Before(at), l.Workload.Clock.After(at)) {
			continue
		}
		if last, exists := l.machines[other].at(l.Management.Clock.Before(at.Add(rounding))); exists && last.DeletionTimestamp != nil && machinedrain.HasHook(last) {
			return other
		}
	}
	return ""
}

// volumesMayEnd returns when the wait for volumes may time out at the earliest: the timeout counts from the end of the drain.
func (l *limits) volumesMayEnd(name string, at time.Time) (end time.Time, not string) {
	timeout := l.timeout(name, at, volumeTimeout)
	if timeout == 0 {
		return end, "the Machine has no timeout for volumes"
	}
	drained, not := l.drainMayEnd(name, at)
	for _, versions := range l.maintenances[name] {
		for _, version := range versions {
			if !version.exists || !meta.IsStatusConditionTrue(version.object.Status.Conditions, v1alpha1.NodeMaintenanceDrained) {
				continue
			}
			if first := l.Workload.Clock.timeOf(version.revision); not != "" || first.Before(drained) {
				drained, not = first, ""
			}
		}
	}
	return drained.Add(timeout), not
}

// excuse returns why a release is not excused by a limit that has ended, "" if it is. The condition must name the wait that has timed out,
// which is not a wait for a turn: such a wait ends with the turn. While writes are lost, that of the condition may be.
func (l *limits) excuse(r release, end time.Time, not string) string {
	if early := end.Sub(r.stored.Add(l.ClockOff).Add(rounding)); not == "" && early > 0 {
		not = fmt.Sprintf("its limit could not end before %s", end.Format("15:04:05.000"))
	}
	if not != "" {
		return not
	}
	condition := conditionOf(r.before)
	if condition == nil || condition.Reason != v1alpha1.ReasonTimedOut {
		if l.hadFault(r.stored, r.stored, writesLost) {
			return ""
		}
		return "its condition has another reason than " + v1alpha1.ReasonTimedOut
	}
	if _, wait, found := strings.Cut(condition.Message, "Seconds: "); !found || wait == "" || strings.Contains(wait, "maxParallelDrains") {
		return "its condition names no wait that a timeout limits"
	}
	return ""
}

// isHeld returns whether the hook delays the deletion of a Machine.
func isHeld(m stored[*clusterv1.Machine]) bool {
	return m.exists && m.object.DeletionTimestamp != nil && machinedrain.HasHook(m.object)
}

func isNotHeld(m stored[*clusterv1.Machine]) bool { return !isHeld(m) }
