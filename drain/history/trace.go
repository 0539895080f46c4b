package history

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Keys of attributes. OpenTelemetry has semantic conventions for those that begin with k8s.
const (
	ClusterKey   = string(semconv.K8SClusterNameKey)
	NodeKey      = string(semconv.K8SNodeNameKey)
	NamespaceKey = string(semconv.K8SNamespaceNameKey)
	PodKey       = string(semconv.K8SPodNameKey)

	ClusterNamespaceKey = "capnm.cluster.namespace"
	MachineKey          = "capnm.machine.name"
	MaintenanceKey      = "capnm.nodemaintenance.name"
	ReasonKey           = "capnm.reason"
	MessageKey          = "capnm.message"
	ObjectKey           = "capnm.waits_for"
	OutcomeKey          = "capnm.outcome"
	RefusalsKey         = "capnm.evictions.refused"

	machineUIDKey     = "capnm.machine.uid"
	maintenanceUIDKey = "capnm.nodemaintenance.uid"
	orderKey          = "capnm.drain.order"
	podTypeKey        = "capnm.pod.type"
	podsKey           = "capnm.pods"
)

// Span is an ended span.
type Span struct {
	TraceID    trace.TraceID
	ID, Parent trace.SpanID // a root span has no parent
	Name       string
	Start, End time.Time
	Attributes []attribute.KeyValue
	Error      string // empty: no error
}

// Trace identifies the trace of one drain. The drain is the deletion of a Machine, or the NodeMaintenance of a user.
type Trace struct {
	// Root is the UID of the deleted Machine, or of the NodeMaintenance.
	Root        types.UID
	Cluster     types.NamespacedName
	Machine     string // name; empty: the root is a NodeMaintenance
	Maintenance string // name; may be empty if the root is a Machine
	Node        string // empty if the NodeMaintenance may have several
}

// Names of spans. Those of the parts of a drain identify the span within its trace.
const (
	DeletionSpanName    = "delete Machine"
	MaintenanceSpanName = "NodeMaintenance"
	EvacuationSpanName  = "evacuate Pod"

	TurnSpan       = "await turn"
	DrainSpan      = "stage Drain"
	VolumesSpan    = "detach volumes"
	DaemonSetsSpan = "drain DaemonSets"
	ReleaseSpan    = "release hook"

	rootSpan = "root"
)

// ID returns the ID of the trace. It follows from the UID of the root. It is a hash, since the sampler decides by bits of the ID that are
// constant in UIDs.
func (t Trace) ID() trace.TraceID {
	sum := sha256.Sum256([]byte("trace " + string(t.Root)))
	return trace.TraceID(sum[:16])
}

// spanID returns the ID of a span, which follows from its position in the trace.
func (t Trace) spanID(path ...string) trace.SpanID {
	sum := sha256.Sum256([]byte("span " + string(t.Root) + "/" + strings.Join(path, "/")))
	return trace.SpanID(sum[:8])
}

func (t Trace) span(id, parent trace.SpanID, name string, start, end time.Time, attributes ...attribute.KeyValue) Span {
	attributes = append(attributes, semconv.K8SClusterName(t.Cluster.Name), attribute.String(ClusterNamespaceKey, t.Cluster.Namespace))
	return Span{TraceID: t.ID(), ID: id, Parent: parent, Name: name, Start: start, End: later(end, start), Attributes: attributes}
}

// stepPath identifies the span of a step.
func stepPath(step Step) []string {
	return []string{"step", string(step.Type), strconv.Itoa(int(step.Order))}
}

// EvacuationSpans returns the spans of a Pod: one for its evacuation, and below it one for each wait.
func (t Trace) EvacuationSpans(e *Evacuation) []Span {
	pod := []attribute.KeyValue{
		semconv.K8SNamespaceName(e.Namespace), semconv.K8SPodName(e.Name), semconv.K8SPodUID(string(e.UID)), semconv.K8SNodeName(e.Node),
	}
	path := []string{"pod", string(e.UID)}
	if e.Attempt > 0 {
		path = append(path, "again", strconv.Itoa(e.Attempt))
	}
	id := t.spanID(path...)
	ended := slices.Concat(pod, []attribute.KeyValue{attribute.String(OutcomeKey, string(e.Outcome)), attribute.Int(RefusalsKey, int(e.Refusals))})
	whole := t.span(id, t.spanID(stepPath(e.Step)...), EvacuationSpanName, e.Start, e.End, ended...)
	if e.Outcome == Remaining {
		whole.Error = "The drain ended before the Pod terminated"
	}
	spans := append(make([]Span, 0, 1+len(e.Waits)), whole)
	for i, wait := range e.Waits {
		attributes := slices.Concat(pod, []attribute.KeyValue{attribute.String(ReasonKey, wait.Reason)})
		if wait.Object != "" {
			attributes = append(attributes, attribute.String(ObjectKey, wait.Object))
		}
		if wait.Message != "" {
			attributes = append(attributes, attribute.String(MessageKey, wait.Message))
		}
		span := t.span(t.spanID(append(slices.Clone(path), strconv.Itoa(i))...), id, descriptions[wait.Reason].span, wait.Start, wait.End, attributes...)
		if KindOf(wait.Reason) == KindRefused {
			span.Error = wait.Reason
		}
		spans = append(spans, span)
	}
	return spans
}

// StepSpan returns the span of a step. The Pods of DaemonSets are drained last, as a part of the deletion of their Machine.
func (t Trace) StepSpan(step EndedStep) Span {
	parent := t.spanID(DrainSpan)
	if step.Type == v1alpha1.PodTypeDaemonSet && t.Machine != "" {
		parent = t.spanID(DaemonSetsSpan)
	}
	return t.span(t.spanID(stepPath(step.Step)...), parent, fmt.Sprintf("drain order %d", step.Order), step.Start, step.End,
		attribute.Int(orderKey, int(step.Order)), attribute.String(podTypeKey, string(step.Type)), attribute.Int(podsKey, step.Pods))
}

// PartSpans returns the spans of parts of a Machine's deletion.
func (t Trace) PartSpans(parts []Part) []Span {
	spans := make([]Span, 0, len(parts))
	for _, part := range parts {
		span := t.span(t.spanID(partSpans[part.Key]), t.spanID(rootSpan), partSpans[part.Key], part.Start, part.End, t.subject()...)
		span.Error = part.Error
		if part.Pods > 0 {
			span.Attributes = append(span.Attributes, attribute.Int(podsKey, part.Pods))
		}
		spans = append(spans, span)
	}
	return spans
}

// DeletionSpan returns the root span of a Machine's deletion: from its deletionTimestamp to the removal of the hook.
func (t Trace) DeletionSpan(start, end time.Time, outcome, message string) Span {
	span := t.span(t.spanID(rootSpan), trace.SpanID{}, DeletionSpanName, start, end,
		append(t.subject(), attribute.String(OutcomeKey, outcome), attribute.String(MessageKey, message))...)
	if outcome == v1alpha1.ReasonTimedOut || outcome == v1alpha1.ReasonHookRemoved {
		span.Error = message
	}
	return span
}

// MaintenanceSpans returns the root span of the NodeMaintenance of a user, and one span for each stage: from its creation to the start of
// stage Complete.
func (t Trace) MaintenanceSpans(m *v1alpha1.NodeMaintenance, end time.Time) []Span {
	spans := []Span{t.span(t.spanID(rootSpan), trace.SpanID{}, MaintenanceSpanName, m.CreationTimestamp.Time, end, t.subject()...)}
	stages := []v1alpha1.NodeMaintenanceStage{v1alpha1.StageIdle, v1alpha1.StageCordon, v1alpha1.StageDrain}
	for i, stage := range stages {
		start := m.StageStart(stage)
		if start == nil {
			continue
		}
		until := end
		for _, next := range stages[i+1:] {
			if began := m.StageStart(next); began != nil && began.Before(until) {
				until = *began
			}
		}
		if stage == v1alpha1.StageCordon && !until.After(*start) { // stage Drain includes it
			continue
		}
		name, attributes := "stage "+string(stage), t.subject()
		if stage == v1alpha1.StageDrain {
			attributes = append(attributes, attribute.Int(podsKey, int(m.Status.Summary.PodsEvacuated)))
		}
		spans = append(spans, t.span(t.spanID(name), t.spanID(rootSpan), name, *start, until, attributes...))
	}
	return spans
}

// subject returns the attributes of the object that the trace is about.
func (t Trace) subject() []attribute.KeyValue {
	var attributes []attribute.KeyValue
	if t.Machine != "" {
		attributes = append(attributes, attribute.String(MachineKey, t.Machine), attribute.String(machineUIDKey, string(t.Root)))
	} else {
		attributes = append(attributes, attribute.String(maintenanceUIDKey, string(t.Root)))
	}
	if t.Maintenance != "" {
		attributes = append(attributes, attribute.String(MaintenanceKey, t.Maintenance))
	}
	if t.Node != "" {
		attributes = append(attributes, semconv.K8SNodeName(t.Node))
	}
	return attributes
}
