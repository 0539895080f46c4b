package tracing

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// evictedTTL is how long the time of an eviction is kept. After that, the deletionTimestamp of the Pod tells it, in whole seconds.
const evictedTTL = 10 * time.Minute

// Recorder records what drains wait for.
type Recorder struct {
	exporter *Exporter                           // nil: tracing is off
	evicted  *expiring.Map[types.UID, time.Time] // when the eviction of a Pod was sent

	mu     sync.Mutex
	drains map[workload.Request]*drain
}

// drain is what is recorded of one drain.
type drain struct {
	root      types.UID            // of its trace
	machine   types.NamespacedName // the deleted Machine that is the root; empty: the root is a NodeMaintenance, or the Machine no longer exists
	forgotten bool                 // the NodeMaintenance does not exist; that of a Machine is recreated

	mu         sync.Mutex
	history    history.Drain
	daemonSets time.Time      // when the drain of the Pods of DaemonSets began, as the last part
	parts      []history.Part // the parts before daemonSets
	drained    bool           // RecordDrained was called
}

// NewRecorder returns a recorder. A nil exporter means that tracing is off.
func NewRecorder(ctx context.Context, exporter *Exporter) *Recorder {
	return &Recorder{exporter: exporter, evicted: expiring.NewMap[types.UID, time.Time](ctx), drains: map[workload.Request]*drain{}}
}

// RecordEvicted records that the eviction of a Pod was sent at a time, and was successful.
func (r *Recorder) RecordEvicted(cluster types.NamespacedName, pod types.UID, at time.Time) {
	r.evicted.Set(cluster, pod, at, evictedTTL)
}

func (r *Recorder) evictedAt(cluster types.NamespacedName) func(pod types.UID) time.Time {
	return func(pod types.UID) time.Time {
		at, _ := r.evicted.Get(cluster, pod)
		return at
	}
}

// drainOf returns the drain of a NodeMaintenance. Another root begins another drain, which continues a drain in place of its Machine.
func (r *Recorder) drainOf(maintenance workload.Request, trace history.Trace) *drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.drains[maintenance]
	if known != nil && known.root == trace.Root {
		return known
	}
	d := &drain{root: trace.Root}
	if trace.Machine != "" {
		d.machine = types.NamespacedName{Namespace: trace.Cluster.Namespace, Name: trace.Machine}
		if known != nil && known.machine == (types.NamespacedName{}) {
			d.history = known.continued()
		}
	}
	r.drains[maintenance] = d
	return d
}

// drainOfMachine returns the drain of a deleted Machine whose NodeMaintenance is not known: it may have been drained before.
func (r *Recorder) drainOfMachine(machine types.UID) *drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.drains {
		if d.root == machine {
			return d
		}
	}
	return &drain{}
}

// drainOfTrace returns the drain of a NodeMaintenance, or of a deleted Machine whose NodeMaintenance is not known.
func (r *Recorder) drainOfTrace(maintenance workload.Request, trace history.Trace) *drain {
	if trace.Maintenance == "" {
		return r.drainOfMachine(trace.Root)
	}
	return r.drainOf(maintenance, trace)
}

// Forget drops what is kept of a NodeMaintenance that no longer exists. The NodeMaintenance of a deleted Machine is recreated until its
// drain has ended or the Machine no longer exists, see ForgetMachine.
func (r *Recorder) Forget(maintenance workload.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch d := r.drains[maintenance]; {
	case d == nil:
	case d.machine == types.NamespacedName{} || d.hasEnded():
		delete(r.drains, maintenance)
	default:
		d.forgotten = true
	}
}

// ForgetMachine drops what is kept of a Machine that no longer exists, also if nothing has ended its drain: a user may have removed its
// finalizers. If its NodeMaintenance still exists, the drain is dropped with it.
func (r *Recorder) ForgetMachine(machine types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.drains, func(_ workload.Request, d *drain) bool {
		if d.machine != machine {
			return false
		}
		d.machine = types.NamespacedName{}
		return d.forgotten || d.hasEnded()
	})
}

// ForgetCluster drops what is kept of a workload cluster whose Cluster no longer exists.
func (r *Recorder) ForgetCluster(cluster types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.drains, func(maintenance workload.Request, _ *drain) bool { return maintenance.Cluster == cluster })
	forgetPlaces(cluster)
}

// continued returns the history of a drain that continues this one, empty if this one has ended. The history of this one begins again,
// because another reconciliation may still use it.
func (d *drain) continued() history.Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.history.Ended() {
		return history.Drain{}
	}
	continued := d.history.Continued()
	d.history = history.Drain{}
	return continued
}

func (d *drain) hasEnded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.history.Ended()
}

// Observe records the Pods of a drain.
func (r *Recorder) Observe(maintenance workload.Request, trace history.Trace, observation history.Observation, now time.Time) {
	d := r.drainOf(maintenance, trace)
	r.recreated(d)
	d.mu.Lock()
	defer d.mu.Unlock()
	observation.Evicted = r.evictedAt(maintenance.Cluster)
	r.ended(trace)(d.history.Observe(observation, now))
}

// recreated records that the NodeMaintenance of a drain exists.
func (r *Recorder) recreated(d *drain) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.forgotten = false
}

// ended returns a function that counts and exports what has ended.
func (r *Recorder) ended(trace history.Trace) func([]history.Evacuation, []history.EndedStep) {
	return func(evacuations []history.Evacuation, steps []history.EndedStep) {
		if len(evacuations)+len(steps) == 0 {
			return
		}
		sampled := r.exporter.Samples(trace)
		for i := range evacuations {
			observeWaits(&evacuations[i])
			if sampled {
				r.exporter.Export(trace.EvacuationSpans(&evacuations[i])...)
			}
		}
		for _, step := range steps {
			if sampled {
				r.exporter.Export(trace.StepSpan(step))
			}
		}
	}
}

// RecordDrained records that the NodeMaintenance of a user has drained its Nodes. It returns the key-value pairs of the line to log, nil if
// that was recorded before or if the start of the drain is not known.
func (r *Recorder) RecordDrained(maintenance workload.Request, trace history.Trace, m *v1alpha1.NodeMaintenance, now time.Time) []any {
	d := r.drainOf(maintenance, trace)
	d.mu.Lock()
	defer d.mu.Unlock()
	start := m.StageStart(v1alpha1.StageDrain)
	if d.drained || start == nil {
		return nil
	}
	d.drained = true
	return append(r.line(d, trace, *start, int(m.Status.Summary.PodsEvacuated)), "outcome", v1alpha1.ReasonDrained, "duration",
		now.Sub(*start).Round(time.Millisecond).String())
}

// EndMaintenance ends the drain of the NodeMaintenance of a user, and exports its root span.
func (r *Recorder) EndMaintenance(maintenance workload.Request, trace history.Trace, m *v1alpha1.NodeMaintenance, now time.Time) {
	d := r.drainOf(maintenance, trace)
	d.mu.Lock()
	defer d.mu.Unlock()
	r.ended(trace)(d.history.End(now))
	if r.exporter.Samples(trace) {
		r.exporter.Export(trace.MaintenanceSpans(m, now)...)
	}
}

// BeginDaemonSets records that the Pods of DaemonSets are drained from now on, as the last part of the deletion of a Machine.
func (r *Recorder) BeginDaemonSets(maintenance workload.Request, trace history.Trace, course history.Course, now time.Time) {
	d := r.drainOf(maintenance, trace)
	d.mu.Lock()
	defer d.mu.Unlock()
	course.DrainEnd = d.history.EndOfDrain(course.DrainEnd)
	d.daemonSets, d.parts = now, course.Before(now)
	r.exportParts(trace, d.parts)
}

// Result is how the deletion of a Machine ended.
type Result struct {
	Outcome, Message string
	Released         time.Time // when the hook was removed
}

// EndDeletion ends the drain of a deleted Machine, and exports its root span. It returns the key-value pairs of the line that is logged,
// nil if the drain has ended before.
func (r *Recorder) EndDeletion(maintenance workload.Request, trace history.Trace, course history.Course, result Result) []any {
	d := r.drainOfTrace(maintenance, trace)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.history.Ended() {
		return nil
	}
	now := result.Released
	r.ended(trace)(d.history.End(now))
	course.DrainEnd = d.history.EndOfDrain(course.DrainEnd)
	all := course.After(now)
	if course.DaemonSets.IsZero() {
		all = append(course.Before(course.Releasing), all...)
	} else if !d.daemonSets.IsZero() {
		course.DaemonSets = d.daemonSets
		all = course.After(now)
	}
	r.exportParts(trace, all)
	if r.exporter.Samples(trace) {
		r.exporter.Export(trace.DeletionSpan(course.Deleted, now, result.Outcome, result.Message))
	}
	line := r.line(d, trace, ptr.Deref(course.DrainStart, course.DrainEnd), course.Pods)
	for _, part := range append(d.parts, all...) {
		line = append(line, part.Key, part.End.Sub(part.Start).Round(time.Millisecond).String())
	}
	return append(line, "outcome", result.Outcome, "message", result.Message, "duration", now.Sub(course.Deleted).Round(time.Millisecond).String())
}

// Outcome returns the outcome of a drain that has ended, before it is read: the Pods that it has evicted. start is the start of the drain,
// and pods the number of evacuated Pods that the status counts, which exceeds the observed ones after a restart of the manager.
func (r *Recorder) Outcome(maintenance workload.Request, trace history.Trace, start time.Time, pods int32, end time.Time) v1alpha1.DrainOutcome {
	d := r.drainOfTrace(maintenance, trace)
	d.mu.Lock()
	defer d.mu.Unlock()
	evicted, beyond := d.history.Evicted()
	summary, lost := d.history.Summary(), int32(0)
	if summary.Since.IsZero() || summary.Since.Sub(start) > restartedAfter {
		lost = max(0, pods-int32(summary.Pods)) //nolint:gosec // bounded by the number of Pods
	}
	return outcome.Begin(evicted, beyond, lost, end)
}

// RecordOutcome exports what became of the evicted Pods of a drain, if that was read and differs from what was known before. A nil Recorder
// exports nothing.
func (r *Recorder) RecordOutcome(trace history.Trace, before, present *v1alpha1.DrainOutcome) {
	if r == nil || present.ReadTime == nil || before != nil && before.ReadTime != nil && before.Pods == present.Pods {
		return
	}
	if r.exporter.Samples(trace) {
		r.exporter.Export(trace.OutcomeSpan(present))
	}
}

func (r *Recorder) exportParts(trace history.Trace, all []history.Part) {
	observeParts(all)
	if r.exporter.Samples(trace) {
		r.exporter.Export(trace.PartSpans(all)...)
	}
}

// line returns the numbers of a drain that began at start. pods is the number of Pods that the status counts.
func (r *Recorder) line(d *drain, trace history.Trace, start time.Time, pods int) []any {
	summary := d.history.Summary()
	longest := make([]string, 0, len(summary.Longest))
	for _, wait := range summary.Longest {
		text := fmt.Sprintf("Pod %s: %s %s", wait.Pod, wait.Reason, wait.For.Round(time.Millisecond))
		if wait.Object != "" {
			text += " (" + wait.Object + ")"
		}
		longest = append(longest, text)
	}
	line := []any{"pods", max(pods, summary.Pods), "evictions", summary.Evictions, "refusals", summary.Refusals, "longestWaits", longest}
	if restarted := summary.Since.Sub(start) > restartedAfter; restarted {
		line = append(line, "observedSince", summary.Since.UTC().Format(time.RFC3339)) // an earlier manager has observed the rest
	}
	if r.exporter.Samples(trace) {
		line = append(line, "traceID", trace.ID().String())
	}
	return line
}

// restartedAfter is how long after the start of a drain its first observation means that another manager has observed it before.
const restartedAfter = 10 * time.Second
