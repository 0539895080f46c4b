package tracing

import (
	"context"
	"time"

	"github.com/pkg/errors"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

const (
	serviceName = "cluster-api-node-maintenance"

	// maxQueue is the maximum number of spans that wait to be sent, each of about 2 kB. Further spans are dropped.
	maxQueue = 8192
	// batchTimeout is how long an ended span waits for others. What waits is lost when the manager is killed.
	batchTimeout = time.Second
	// exportTimeout is how long the collector may take to accept a batch, which is dropped then.
	exportTimeout = 10 * time.Second
	// flushTimeout is how long a manager that stops waits for the collector.
	flushTimeout = time.Second

	perMillion = 1e6
)

// Exporter sends spans to an OpenTelemetry collector. A nil Exporter sends nothing.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
}

// NewExporter returns an exporter of spans by OTLP over gRPC. It does not wait for the collector. As with kube-apiserver, no trace is
// sampled unless the configuration sets a rate, and the connection is not encrypted: a collector is expected in the same Pod or on the same
// Node.
func NewExporter(ctx context.Context, config *tracingapi.TracingConfiguration, version string) (*Exporter, error) {
	options := []otlptracegrpc.Option{otlptracegrpc.WithInsecure(), otlptracegrpc.WithTimeout(exportTimeout)}
	if config.Endpoint != nil {
		options = append(options, otlptracegrpc.WithEndpoint(*config.Endpoint))
	}
	client, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, errors.Wrap(err, "creating the OTLP exporter")
	}
	service, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName(serviceName), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Wrap(err, "describing the service for traces")
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { klog.Background().WithName("tracing").Error(err, "Failed to export spans") }))
	// The decision follows from the trace ID alone, so that the spans of a trace are sampled together, also those of different managers.
	e := &Exporter{sampler: sdktrace.TraceIDRatioBased(float64(ptr.Deref(config.SamplingRatePerMillion, 0)) / perMillion)}
	e.provider = sdktrace.NewTracerProvider(
		sdktrace.WithSampler(e.sampler), sdktrace.WithIDGenerator(givenIDs{}), sdktrace.WithResource(service),
		sdktrace.WithBatcher(client, sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithBatchTimeout(batchTimeout), sdktrace.WithExportTimeout(exportTimeout)),
	)
	e.tracer = e.provider.Tracer("github.com/capnm/cluster-api-node-maintenance")
	return e, nil
}

// Samples reports whether the spans of the trace are sent.
func (e *Exporter) Samples(t history.Trace) bool {
	return e != nil && e.sampler.ShouldSample(sdktrace.SamplingParameters{TraceID: t.ID()}).Decision == sdktrace.RecordAndSample
}

// Export queues the spans. It does not block.
func (e *Exporter) Export(spans ...history.Span) {
	for _, ended := range spans {
		ctx := context.WithValue(context.Background(), idsKey{}, ended)
		if ended.Parent.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: ended.TraceID, SpanID: ended.Parent, TraceFlags: trace.FlagsSampled, Remote: true,
			}))
		}
		_, span := e.tracer.Start(ctx, ended.Name, trace.WithTimestamp(ended.Start), trace.WithAttributes(ended.Attributes...))
		if ended.Error != "" {
			span.SetStatus(codes.Error, ended.Error)
		}
		span.End(trace.WithTimestamp(ended.End))
	}
}

// Shutdown sends what is queued, and waits for the collector for a short time.
func (e *Exporter) Shutdown() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil {
		klog.Background().WithName("tracing").Error(err, "Failed to export the last spans")
	}
}

// givenIDs is an IDGenerator that returns the IDs of the span in the context: see Exporter.Export.
type givenIDs struct{}

type idsKey struct{}

// NewIDs implements sdktrace.IDGenerator.
func (givenIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	span, _ := ctx.Value(idsKey{}).(history.Span)
	return span.TraceID, span.ID
}

// NewSpanID implements sdktrace.IDGenerator.
func (g givenIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, id := g.NewIDs(ctx)
	return id
}
