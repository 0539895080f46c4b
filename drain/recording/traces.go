package recording

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/errors"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

// maxSpans is the maximum number of spans that are read.
const maxSpans = 200_000

// isTraces reports whether a file begins like OTLP JSON.
func isTraces(file *bufio.Reader) bool {
	const enough = 256
	beginning, _ := file.Peek(enough)
	return bytes.Contains(beginning, []byte(`"resourceSpans"`))
}

// readTraces reads the traces that the manager exports, as OTLP JSON. The OpenTelemetry Collector's file exporter writes one object after
// another, and version 3 of Jaeger's API wraps them in result. Spans of other programs are ignored.
func readTraces(file io.Reader) (*History, error) {
	b := &traceReader{history: &History{}, drains: map[string]*Drain{}, waits: map[string][]history.Wait{}, releasing: map[string]time.Time{}}
	decoder := json.NewDecoder(file)
	for {
		var object otlp
		if err := decoder.Decode(&object); err == io.EOF {
			break
		} else if err != nil {
			return nil, errors.Wrap(err, "reading the traces")
		}
		if object.Result != nil {
			object = *object.Result
		}
		for _, resource := range object.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				b.spans = append(b.spans, scope.Spans...)
			}
		}
		if len(b.spans) > maxSpans {
			return nil, errors.Errorf("the traces have more than %d spans", maxSpans)
		}
	}
	if b.read(); len(b.history.Drains) == 0 {
		return nil, errors.New("the file has no trace of a drain")
	}
	return b.history, nil
}

// otlp is a part of the ExportTraceServiceRequest of OTLP.
type otlp struct {
	Result        *otlp
	ResourceSpans []struct {
		ScopeSpans []struct{ Spans []otlpSpan }
	}
}

type otlpSpan struct {
	TraceID, SpanID, ParentSpanID, Name string
	StartTimeUnixNano, EndTimeUnixNano  json.Number // strings, or numbers from other writers
	Attributes                          []struct {
		Key   string
		Value struct {
			StringValue string
			IntValue    json.Number
		}
	}
}

func (s *otlpSpan) text(key string) string {
	for _, attribute := range s.Attributes {
		if attribute.Key == key {
			return attribute.Value.StringValue
		}
	}
	return ""
}

func (s *otlpSpan) number(key string) int32 {
	for _, attribute := range s.Attributes {
		if attribute.Key == key {
			n, _ := strconv.ParseInt(attribute.Value.IntValue.String(), 10, 32)
			return int32(n)
		}
	}
	return 0
}

func nanos(n json.Number) time.Time {
	value, _ := n.Int64()
	return time.Unix(0, value).UTC()
}

func (s *otlpSpan) start() time.Time { return nanos(s.StartTimeUnixNano) }
func (s *otlpSpan) end() time.Time   { return nanos(s.EndTimeUnixNano) }

// traceReader builds a History from spans. The last span of a drain may be its first one in the file.
type traceReader struct {
	spans   []otlpSpan
	history *History
	drains  map[string]*Drain         // by trace
	waits   map[string][]history.Wait // of Pods, by span

	releasing map[string]time.Time // when the Machine got its result, by trace
}

func (b *traceReader) read() {
	slices.SortStableFunc(b.spans, func(x, y otlpSpan) int { return x.start().Compare(y.start()) })
	for i := range b.spans {
		b.part(&b.spans[i])
	}
	outcomes := map[string]Outcome{}
	for i := range b.spans {
		b.pod(&b.spans[i])
		b.result(&b.spans[i])
		b.outcome(&b.spans[i], outcomes)
	}
	b.history.Outcomes = sorted(outcomes)
	incomplete := false
	for i := range b.spans {
		id := b.spans[i].TraceID
		d := b.drains[id]
		if d == nil {
			continue
		}
		delete(b.drains, id)
		d.settleTrace()
		incomplete = incomplete || d.Gone.IsZero()
		b.history.Drains = append(b.history.Drains, *d)
	}
	for i := range b.history.Drains {
		b.history.Drains[i].ended = b.history.End
	}
	if incomplete {
		b.history.Incomplete = "a drain has no root span: it had not ended, or the span was not exported"
	}
}

// settleTrace is settle for a trace, in which End is the end of the stage, however the drain ended. An end before the hook was removed may
// be that of a drain that had timed out.
func (d *Drain) settleTrace() {
	isRemaining := slices.ContainsFunc(d.Pods, func(pod PodCourse) bool { return !pod.Ended })
	result, ended := d.lastResult(), d.End
	switch {
	case d.Gone.IsZero(): // the root span is missing
		d.before, d.End = notRecorded, time.Time{}
	case d.Machine == "" && isRemaining:
		d.End, d.Cancelled = time.Time{}, d.End
	case result.Reason != "":
		if !strings.HasPrefix(result.Message, history.VolumesExceeded) {
			d.End = time.Time{}
		}
		d.settle(isRemaining || !ended.Before(result.Start))
	}
}

// of returns the drain of a span of our manager.
func (b *traceReader) of(s *otlpSpan) *Drain {
	d := b.drains[s.TraceID]
	if d == nil {
		d = &Drain{Cluster: s.text(history.ClusterNamespaceKey) + "/" + s.text(history.ClusterKey)}
		b.drains[s.TraceID] = d
	}
	if node := s.text(history.NodeKey); node != "" && !slices.Contains(d.Nodes, node) {
		d.Nodes = append(d.Nodes, node)
	}
	h := b.history
	if start := s.start(); h.Start.IsZero() || start.Before(h.Start) {
		h.Start = start
	}
	if end := s.end(); end.After(h.End) {
		h.End = end
	}
	return d
}

// phases are the reasons of the condition of the Machine during the parts of its deletion.
var phases = map[string]string{
	history.TurnSpan: v1alpha1.ReasonWaitingForTurn, history.DrainSpan: v1alpha1.ReasonMachineDraining,
	history.VolumesSpan: v1alpha1.ReasonWaitingForVolumeDetach, history.DaemonSetsSpan: v1alpha1.ReasonMachineDraining,
}

// part reads a span that is not of a Pod.
func (b *traceReader) part(s *otlpSpan) {
	switch s.Name {
	case history.DeletionSpanName:
		d := b.of(s)
		d.Machine, d.Maintenance = s.text(history.ClusterNamespaceKey)+"/"+s.text(history.MachineKey), s.text(history.MaintenanceKey)
		d.Deleted, d.Gone = s.start(), s.end()
	case history.MaintenanceSpanName:
		d := b.of(s)
		d.Maintenance, d.Gone = s.text(history.MaintenanceKey), s.end()
	case history.DrainSpan:
		d := b.of(s)
		d.Start = s.start()
		d.End = s.end()
	case history.DaemonSetsSpan:
		b.of(s).End = s.end()
	case history.ReleaseSpan:
		b.releasing[s.TraceID] = s.start()
	}
	if reason := phases[s.Name]; reason != "" && s.text(history.MachineKey) != "" {
		d := b.of(s)
		d.Phases = append(d.Phases, history.Wait{Reason: reason, Start: s.start(), End: s.end()})
	}
	if reason := s.text(history.ReasonKey); reason != "" && s.ParentSpanID != "" {
		b.of(s)
		wait := history.Wait{Reason: reason, Object: s.text(history.ObjectKey), Message: s.text(history.MessageKey), Start: s.start(), End: s.end()}
		b.waits[s.ParentSpanID] = addWait(b.waits[s.ParentSpanID], wait)
	}
}

// result reads the result of a drain whose parts have been read. Another one than Drained is a phase.
func (b *traceReader) result(s *otlpSpan) {
	outcome := s.text(history.OutcomeKey)
	if s.Name != history.DeletionSpanName || outcome == "" {
		return
	}
	d, at := b.of(s), cmp.Or(b.releasing[s.TraceID], s.end())
	if outcome == v1alpha1.ReasonMachineDrained {
		d.End = cmp.Or(d.End, at)
		return
	}
	d.Phases = append(d.Phases, history.Wait{Reason: outcome, Message: s.text(history.MessageKey), Start: at, End: s.end()})
}

// outcome reads the last reading of what became of the evicted Pods of a drain. It is no part of the time of the drains.
func (b *traceReader) outcome(s *otlpSpan, outcomes map[string]Outcome) {
	last, known := outcomes[s.TraceID]
	if s.Name != history.OutcomeSpan || b.drains[s.TraceID] == nil || known && !s.end().After(*last.Read) || !known && len(outcomes) == maxOutcomes {
		return
	}
	namespace := s.text(history.ClusterNamespaceKey) + "/"
	o := Outcome{
		Cluster: namespace + s.text(history.ClusterKey), Maintenance: s.text(history.MaintenanceKey), Node: s.text(history.NodeKey),
		Ended: s.start(), Read: ptr.To(s.end()), Message: s.text(history.MessageKey), Pods: bounded(v1alpha1.EvictedPods{
			Evicted: s.number(history.EvictedKey), Ready: s.number(history.ReadyKey), NotReady: s.number(history.NotReadyKey),
			Pending: s.number(history.PendingKey), NotReplaced: s.number(history.NotReplacedKey), NotNeeded: s.number(history.NotNeededKey),
			Unknown: s.number(history.UnknownKey),
		}),
	}
	if machine := s.text(history.MachineKey); machine != "" {
		o.Machine = namespace + machine
	}
	outcomes[s.TraceID] = o
}

// addWait adds a wait, with the reason and the message that a recording has.
func addWait(waits []history.Wait, wait history.Wait) []history.Wait {
	switch wait.Reason {
	case history.WaitCompletion:
		wait.Reason, wait.Message = history.WaitOther, "completion ("+wait.Message+")"
	case history.WaitRules:
		wait.Reason = history.WaitOther
	}
	waits = history.Proceed(waits, wait)
	waits[len(waits)-1].End = wait.End
	return waits
}

// pod reads the span of the evacuation of a Pod, whose waits have been read.
func (b *traceReader) pod(s *otlpSpan) {
	if s.Name != history.EvacuationSpanName {
		return
	}
	d := b.of(s)
	if len(d.Pods) >= maxPods {
		b.history.Incomplete = "a drain has more than " + strconv.Itoa(maxPods) + " Pods; the others are missing"
		return
	}
	d.Pods = append(d.Pods, PodCourse{
		Name: s.text(history.NamespaceKey) + "/" + s.text(history.PodKey), Node: s.text(history.NodeKey), Start: s.start(), End: s.end(),
		Ended: s.text(history.OutcomeKey) != string(history.Remaining), Refusals: s.number(history.RefusalsKey), Waits: b.waits[s.SpanID],
	})
}
