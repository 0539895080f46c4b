package tracing

import (
	"fmt"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

// traces is the number of traces in tests of sampling.
const traces = 1000

// hangingCollector listens and never answers.
func hangingCollector(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func exporterTo(t *testing.T, endpoint string, rate *int32) *Exporter {
	t.Helper()
	exporter, err := NewExporter(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: rate}, "test")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(exporter.Shutdown)
	return exporter
}

func traceNumbered(i int) history.Trace {
	return history.Trace{Root: types.UID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)), Machine: "m"}
}

// sampled returns how many of the traces are sampled.
func sampled(t *testing.T, rate *int32) (count int) {
	t.Helper()
	exporter := exporterTo(t, hangingCollector(t), rate)
	for i := range traces {
		if exporter.Samples(traceNumbered(i)) {
			count++
		}
	}
	return count
}

func TestCollectorThatHangs(t *testing.T) {
	t.Run("M73: spans that exceed the queue are dropped, and neither an export nor the shutdown waits", func(t *testing.T) {
		g := NewWithT(t)
		exporter := exporterTo(t, hangingCollector(t), ptr.To[int32](perMillion))
		begin := time.Now()
		for i := range 4 * maxQueue {
			exporter.Export(traceNumbered(i).DeletionSpan(begin, begin, "Drained", ""))
		}
		ended := time.Now()
		exporter.Shutdown()
		g.Expect(ended.Sub(begin)).To(BeNumerically("<", time.Minute), "the collector would take minutes to refuse all batches")
		g.Expect(time.Since(ended)).To(BeNumerically("<", exportTimeout))
	})
}
