package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	drainhistory "github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/recording"
	"github.com/capnm/cluster-api-node-maintenance/test/controlplane"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// The vocabulary of tests of traces: Jaeger, and the traces that it has received.

// collector is a Jaeger that keeps traces in memory.
type collector struct {
	otlp, query string // addresses
}

// startCollector starts Jaeger. It stops with the test.
func startCollector(t *testing.T) *collector {
	t.Helper()
	g := NewWithT(t)
	path, err := controlplane.Tool("jaeger")
	g.Expect(err).NotTo(HaveOccurred())
	address := func() string {
		address, err := fleet.FreeAddress()
		g.Expect(err).NotTo(HaveOccurred())
		return address
	}
	c, args := &collector{otlp: address(), query: address()}, []string{"--log-level=warn"}
	for _, flag := range []string{
		"admin.http", "collector.grpc-server", "collector.http-server", "collector.otlp.http", "http-server", "query.grpc-server",
	} {
		args = append(args, "--"+flag+".host-port="+address())
	}
	for _, flag := range []string{"processor.jaeger-binary", "processor.jaeger-compact", "processor.zipkin-compact"} {
		args = append(args, "--"+flag+".server-host-port="+address())
	}
	jaeger, err := controlplane.RunProcess(t.Context(), controlplane.ProcessSpec{
		Name: "jaeger", Path: path, LogFile: filepath.Join(t.TempDir(), "jaeger.log"),
		Args: append(args, "--collector.otlp.grpc.host-port="+c.otlp, "--query.http-server.host-port="+c.query),
		Ready: func(ctx context.Context) error {
			_, err := c.spans(ctx, "00000000000000000000000000000001")
			return err
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = jaeger.Stop() })
	return c
}

// tracingConfig writes a TracingConfiguration that samples all traces, and returns the flag of the manager.
func tracingConfig(t *testing.T, endpoint string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: " + endpoint + "\nsamplingRatePerMillion: 1000000\n"
	NewWithT(t).Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed())
	return "--tracing-config-file=" + file
}

// span is a span that Jaeger has received.
type span struct {
	ID, Parent, Name string
	Start, End       time.Time
	Tags             map[string]any
}

// String describes the span in failures.
func (s span) String() string {
	return fmt.Sprintf("%s %s %s+%s %v", s.ID, s.Name, s.Start.Format("15:04:05.000"), s.End.Sub(s.Start), s.Tags)
}

// spans returns the spans of a trace, in the order of their start.
func (c *collector) spans(ctx context.Context, id string) ([]span, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.query+"/api/traces/"+id, nil)
	if err != nil {
		return nil, errors.Wrap(err, "asking Jaeger for a trace")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, errors.Wrap(err, "asking Jaeger for a trace")
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	var body struct {
		Data []struct {
			Spans []struct {
				SpanID, OperationName string
				StartTime, Duration   int64 // in microseconds
				References            []struct{ SpanID string }
				Tags                  []struct {
					Key   string
					Value any
				}
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return nil, errors.Wrap(err, "reading the trace from Jaeger")
	}
	var spans []span
	for _, trace := range body.Data {
		for _, received := range trace.Spans {
			one := span{ID: received.SpanID, Name: received.OperationName, Start: time.UnixMicro(received.StartTime), Tags: map[string]any{}}
			one.End = one.Start.Add(time.Duration(received.Duration) * time.Microsecond)
			for _, reference := range received.References {
				one.Parent = reference.SpanID
			}
			for _, tag := range received.Tags {
				one.Tags[tag.Key] = tag.Value
			}
			spans = append(spans, one)
		}
	}
	slices.SortStableFunc(spans, func(a, b span) int { return a.Start.Compare(b.Start) })
	return spans, nil
}

// traceID returns the ID of the trace of a Machine or NodeMaintenance.
func traceID(root types.UID) string { return drainhistory.Trace{Root: root}.ID().String() }

// report returns what the report of the kubectl plugin says about a trace, which it reads from Jaeger as OTLP JSON.
func (c *collector) report(s *scene, root types.UID) *recording.Drain {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "http://"+c.query+"/api/v3/traces/"+traceID(root), nil)
	s.Expect(err).NotTo(HaveOccurred())
	response, err := http.DefaultClient.Do(request)
	s.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	read, err := recording.Read(response.Body)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(read.Incomplete).To(BeEmpty())
	s.Expect(read.Drains).To(HaveLen(1))
	return &read.Drains[0]
}

// trace is a complete trace.
type trace struct {
	*scene
	spans []span // without those of the outcome, which follow the root
}

// traceOf waits until the root span of the trace of a Machine or NodeMaintenance and the parents of all spans have arrived, and returns the
// trace. All spans of a trace have been sent when the root is sent, but Jaeger stores them concurrently.
func (c *collector) traceOf(s *scene, root types.UID) *trace {
	s.Helper()
	id := traceID(root)
	t := &trace{scene: s}
	s.Eventually(func(g Gomega) {
		var err error
		t.spans, err = c.spans(s.Context(), id)
		g.Expect(err).NotTo(HaveOccurred())
		t.spans = slices.DeleteFunc(t.spans, func(each span) bool { return each.Name == drainhistory.OutcomeSpan })
		ids := sets.New("")
		for _, each := range t.spans {
			ids.Insert(each.ID)
		}
		g.Expect(t.spans).To(And(ContainElement(HaveField("Parent", BeEmpty())), HaveEach(HaveField("Parent", BeKeyOf(ids)))))
	}, soon, pace).Should(Succeed(), "trace %s", id)
	return t
}

// named returns the spans with a name.
func (t *trace) named(name string) []span {
	return t.where(func(s span) bool { return s.Name == name })
}

// one returns the only span with a name.
func (t *trace) one(name string) span {
	t.Helper()
	found := t.named(name)
	t.Expect(found).To(HaveLen(1), "%s among %s", name, t.spans)
	return found[0]
}

// childrenOf returns the spans below a span.
func (t *trace) childrenOf(parent span) []span {
	return t.where(func(s span) bool { return s.Parent == parent.ID })
}

// evacuationOf returns the span of the evacuation of a Pod.
func (t *trace) evacuationOf(pod *corev1.Pod) span {
	t.Helper()
	found := t.where(func(s span) bool { return s.Name == "evacuate Pod" && s.Tags["k8s.pod.uid"] == string(pod.UID) })
	t.Expect(found).To(HaveLen(1), "Pod %s", pod.Name)
	return found[0]
}

// expectOutcome checks that the trace of a Machine or NodeMaintenance gets a span, below the root, which says how many Pods were evicted,
// and how many of them were not replaced.
func (t *trace) expectOutcome(jaeger *collector, root types.UID, evicted, notReplaced int) {
	t.Helper()
	parent := t.where(func(s span) bool { return s.Parent == "" })[0].ID
	numbers := And(HaveKeyWithValue(drainhistory.EvictedKey, BeEquivalentTo(evicted)), HaveKeyWithValue(drainhistory.NotReplacedKey, BeEquivalentTo(notReplaced)))
	t.Eventually(func(g Gomega) {
		spans, err := jaeger.spans(t.Context(), traceID(root))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(spans).To(ContainElement(And(HaveField("Name", drainhistory.OutcomeSpan), HaveField("Parent", parent), HaveField("Tags", numbers))))
	}, outcomeTimeout, pace).Should(Succeed())
}

// tree returns the trace as an indented list of spans.
func (t *trace) tree() string {
	var b strings.Builder
	begin := t.spans[0].Start
	var write func(below, indent string)
	write = func(below, indent string) {
		for _, each := range t.spans {
			if each.Parent != below {
				continue
			}
			fmt.Fprintf(&b, "%-74s %5.1f s %5.1f s\n", indent+each.Name+each.subject(), each.Start.Sub(begin).Seconds(), each.End.Sub(each.Start).Seconds())
			write(each.ID, indent+"  ")
		}
	}
	write("", "")
	return b.String()
}

// subject returns the object that the span names.
func (s span) subject() string {
	for _, tag := range []string{"capnm.waits_for", "capnm.machine.name", "k8s.pod.name"} {
		if value, found := s.Tags[tag]; found && (tag == "capnm.waits_for" || s.Parent == "" || s.Name == "evacuate Pod") {
			return fmt.Sprintf(" (%v)", value)
		}
	}
	return ""
}

func (t *trace) where(matches func(span) bool) (found []span) {
	for _, each := range t.spans {
		if matches(each) {
			found = append(found, each)
		}
	}
	return found
}

// expectWhole checks that the trace has one root, that each other span has a parent, that no span is repeated, and that each span is within
// the time of its parent. Start times from the API are in whole seconds.
func (t *trace) expectWhole() {
	t.Helper()
	byID := map[string]span{}
	for _, each := range t.spans {
		t.Expect(byID).NotTo(HaveKey(each.ID), "%s is repeated", each)
		byID[each.ID] = each
		t.Expect(each.Tags).To(HaveKeyWithValue("k8s.cluster.name", "c1"), "%s", each)
	}
	t.Expect(t.where(func(s span) bool { return s.Parent == "" })).To(HaveLen(1))
	for _, each := range t.spans {
		if each.Parent == "" {
			continue
		}
		t.Expect(byID).To(HaveKey(each.Parent), "the parent of %s", each)
		parent := byID[each.Parent]
		t.Expect(each.Start).To(BeTemporally(">=", parent.Start.Add(-time.Second)), "%s begins before %s", each, parent)
		t.Expect(each.End).To(BeTemporally("<=", parent.End.Add(time.Second)), "%s ends after %s", each, parent)
	}
}

// namesOf returns the names of spans.
func namesOf(spans []span) []string {
	var names []string
	for _, each := range spans {
		names = append(names, each.Name)
	}
	return names
}
