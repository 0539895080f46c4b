package history

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Attributes for which OpenTelemetry has no semantic convention.
const (
	clusterNamespaceKey = attribute.Key("capnm.cluster.namespace")
	machineNameKey      = attribute.Key("capnm.machine.name")
	machineUIDKey       = attribute.Key("capnm.machine.uid")
	maintenanceKey      = attribute.Key("capnm.nodemaintenance.name")
	maintenanceUIDKey   = attribute.Key("capnm.nodemaintenance.uid")
	reasonKey           = attribute.Key("capnm.reason")
	messageKey          = attribute.Key("capnm.message")
	objectKey           = attribute.Key("capnm.waits_for")
	outcomeKey          = attribute.Key("capnm.outcome")
	orderKey            = attribute.Key("capnm.drain.order")
	podTypeKey          = attribute.Key("capnm.pod.type")
	podsKey             = attribute.Key("capnm.pods")
	refusalsKey         = attribute.Key("capnm.evictions.refused")
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

// Names of the spans below the root. They identify the spans within their trace.
const (
	rootSpan       = "root"
	daemonSetsSpan = "drain DaemonSets"
	drainSpan      = "stage Drain"
)

// ID returns the ID of the trace. It follows from the UID of the root. It is a hash, since the sampler decides by bits of the ID that are constant
// in UIDs.
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
	attributes = append(attributes, semconv.K8SClusterName(t.Cluster.Name), clusterNamespaceKey.String(t.Cluster.Namespace))
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
	id := t.spanID("pod", string(e.UID))
	whole := t.span(id, t.spanID(stepPath(e.Step)...), "evacuate Pod", e.Start, e.End, append(pod[:len(pod):len(pod)],
		outcomeKey.String(string(e.Outcome)), refusalsKey.Int(int(e.Refusals)))...)
	if e.Outcome == Remaining {
		whole.Error = "The drain ended before the Pod terminated"
	}
	spans := append(make([]Span, 0, 1+len(e.Waits)), whole)
	for i, wait := range e.Waits {
		attributes := append(pod[:len(pod):len(pod)], reasonKey.String(wait.Reason))
		if wait.Object != "" {
			attributes = append(attributes, objectKey.String(wait.Object))
		}
		if wait.Message != "" {
			attributes = append(attributes, messageKey.String(wait.Message))
		}
		span := t.span(t.spanID("pod", string(e.UID), strconv.Itoa(i)), id, spanNames[wait.Reason], wait.Start, wait.End, attributes...)
		if span.Name == "eviction refused" {
			span.Error = wait.Reason
		}
		spans = append(spans, span)
	}
	return spans
}

// StepSpan returns the span of a step. The Pods of DaemonSets are drained last, as a part of the deletion of their Machine.
func (t Trace) StepSpan(step EndedStep) Span {
	parent := t.spanID(drainSpan)
	if step.Type == v1alpha1.PodTypeDaemonSet && t.Machine != "" {
		parent = t.spanID(daemonSetsSpan)
	}
	return t.span(t.spanID(stepPath(step.Step)...), parent, fmt.Sprintf("drain order %d", step.Order), step.Start, step.End,
		orderKey.Int(int(step.Order)), podTypeKey.String(string(step.Type)), podsKey.Int(step.Pods))
}

// PartSpans returns the spans of parts of a Machine's deletion.
func (t Trace) PartSpans(parts []Part) []Span {
	spans := make([]Span, 0, len(parts))
	for _, part := range parts {
		span := t.span(t.spanID(partSpans[part.Key]), t.spanID(rootSpan), partSpans[part.Key], part.Start, part.End, t.subject()...)
		span.Error = part.Error
		if part.Pods > 0 {
			span.Attributes = append(span.Attributes, podsKey.Int(part.Pods))
		}
		spans = append(spans, span)
	}
	return spans
}

// DeletionSpan returns the root span of a Machine's deletion: from its deletionTimestamp to the removal of the hook.
func (t Trace) DeletionSpan(start, end time.Time, outcome, message string) Span {
	span := t.span(t.spanID(rootSpan), trace.SpanID{}, "delete Machine", start, end, append(t.subject(), outcomeKey.String(outcome), messageKey.String(message))...)
	if outcome == v1alpha1.ReasonTimedOut || outcome == v1alpha1.ReasonHookRemoved {
		span.Error = message
	}
	return span
}

// MaintenanceSpans returns the root span of the NodeMaintenance of a user, and one span for each stage: from its creation to the start of stage
// Complete.
func (t Trace) MaintenanceSpans(m *v1alpha1.NodeMaintenance, end time.Time) []Span {
	spans := []Span{t.span(t.spanID(rootSpan), trace.SpanID{}, "NodeMaintenance", m.CreationTimestamp.Time, end, t.subject()...)}
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
			attributes = append(attributes, podsKey.Int(int(m.Status.Summary.PodsEvacuated)))
		}
		spans = append(spans, t.span(t.spanID(name), t.spanID(rootSpan), name, *start, until, attributes...))
	}
	return spans
}

// subject returns the attributes of the object that the trace is about.
func (t Trace) subject() []attribute.KeyValue {
	var attributes []attribute.KeyValue
	if t.Machine != "" {
		attributes = append(attributes, machineNameKey.String(t.Machine), machineUIDKey.String(string(t.Root)))
	} else {
		attributes = append(attributes, maintenanceUIDKey.String(string(t.Root)))
	}
	if t.Maintenance != "" {
		attributes = append(attributes, maintenanceKey.String(t.Maintenance))
	}
	if t.Node != "" {
		attributes = append(attributes, semconv.K8SNodeName(t.Node))
	}
	return attributes
}
