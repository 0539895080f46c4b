package history

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// OutcomeSpan is the name of the spans that say what became of the evicted Pods of a drain.
const OutcomeSpan = "evicted Pods"

// Keys of the numbers of Pods in such a span, see v1alpha1.EvictedPods.
const (
	EvictedKey     = podsKey
	ReadyKey       = "capnm.pods.ready"
	NotReadyKey    = "capnm.pods.not_ready"
	PendingKey     = "capnm.pods.pending"
	NotReplacedKey = "capnm.pods.not_replaced"
	NotNeededKey   = "capnm.pods.not_needed"
	UnknownKey     = "capnm.pods.unknown"
)

// OutcomeSpan returns the span of a reading of an outcome, from the end of the drain to the reading. Each reading has its own span.
func (t Trace) OutcomeSpan(of *v1alpha1.DrainOutcome) Span {
	attributes := t.subject()
	for _, number := range []struct {
		key  string
		pods int32
	}{
		{EvictedKey, of.Pods.Evicted}, {ReadyKey, of.Pods.Ready}, {NotReadyKey, of.Pods.NotReady}, {PendingKey, of.Pods.Pending},
		{NotReplacedKey, of.Pods.NotReplaced}, {NotNeededKey, of.Pods.NotNeeded}, {UnknownKey, of.Pods.Unknown},
	} {
		attributes = append(attributes, attribute.Int(number.key, int(number.pods)))
	}
	if of.Message != "" {
		attributes = append(attributes, attribute.String(MessageKey, of.Message))
	}
	read := of.EndTime.Time
	if of.ReadTime != nil {
		read = of.ReadTime.Time
	}
	return t.span(t.spanID("outcome", read.UTC().Format(time.RFC3339)), t.spanID(rootSpan), OutcomeSpan, of.EndTime.Time, read, attributes...)
}
