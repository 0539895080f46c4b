package tracing

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestForget(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	machine := types.NamespacedName{Namespace: "fleet", Name: "m"}
	request := workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: types.NamespacedName{Name: "nm"}}
	trace := history.Trace{Root: "uid", Cluster: request.Cluster, Machine: machine.Name, Maintenance: "nm", Node: "n"}
	pod := history.Pod{
		Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}, Type: v1alpha1.PodTypeDefault,
		Verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}, Targeted: true,
	}
	draining := func(t *testing.T) *Recorder {
		t.Helper()
		r := NewRecorder(t.Context(), nil)
		r.Observe(request, trace, history.Observation{Pods: []history.Pod{pod}, Nodes: sets.New("n")}, now)
		return r
	}
	t.Run("M70: forgets the drain of a deleted Machine with the NodeMaintenance, if the Machine no longer exists", func(t *testing.T) {
		g, r := NewWithT(t), draining(t)
		r.ForgetMachine(types.NamespacedName{Namespace: "fleet", Name: "other"})
		r.ForgetMachine(machine)
		g.Expect(r.drains).To(HaveLen(1), "its NodeMaintenance is observed until it is deleted")
		r.Forget(request)
		g.Expect(r.drains).To(BeEmpty())
	})
	t.Run("M70: forgets the drain of a deleted Machine with the Machine, if the NodeMaintenance no longer exists", func(t *testing.T) {
		g, r := NewWithT(t), draining(t)
		r.Forget(request)
		g.Expect(r.drains).To(HaveLen(1), "the NodeMaintenance is recreated")
		r.ForgetMachine(machine)
		g.Expect(r.drains).To(BeEmpty())
	})
	t.Run("M70: forgets the drain of a deleted Machine not yet if the NodeMaintenance was recreated", func(t *testing.T) {
		g, r := NewWithT(t), draining(t)
		r.Forget(request)
		r.Observe(request, trace, history.Observation{Pods: []history.Pod{pod}, Nodes: sets.New("n")}, now)
		r.ForgetMachine(machine)
		g.Expect(r.drains).To(HaveLen(1))
		r.Forget(request)
		g.Expect(r.drains).To(BeEmpty())
	})
	t.Run("M70: forgets the drain of a deleted Machine when the hook is released without the NodeMaintenance",
		func(t *testing.T) { // admit: the Cluster or the Node is deleted, the Node is out of service
			g, r := NewWithT(t), draining(t)
			noMaintenance, unknown := trace, workload.Request{Cluster: request.Cluster}
			noMaintenance.Maintenance = ""
			course := history.Course{Deleted: now, DrainEnd: now, Releasing: now}
			line := r.EndDeletion(unknown, noMaintenance, course, Result{Outcome: v1alpha1.ReasonSkipped, Released: now.Add(time.Minute)})
			g.Expect(line).To(ContainElements("pods", 1), "the Pod that remains")
			g.Expect(r.EndDeletion(unknown, noMaintenance, course, Result{Released: now})).To(BeNil(), "it has ended before")
			r.Forget(request)
			g.Expect(r.drains).To(BeEmpty())
		})
}

func TestOutcome(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := workload.Request{Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Object: types.NamespacedName{Name: "nm"}}
	trace := history.Trace{Root: "uid", Cluster: request.Cluster, Machine: "m", Maintenance: "nm", Node: "n"}
	pod := history.Pod{
		Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}, Type: v1alpha1.PodTypeDefault,
		Verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}, Targeted: true,
	}
	// drained returns the outcome of a drain that is observed since a time, and whose status counts three evacuated Pods.
	drained := func(t *testing.T, since time.Time) v1alpha1.EvictedPods {
		t.Helper()
		r := NewRecorder(t.Context(), nil)
		r.Observe(request, trace, history.Observation{Pods: []history.Pod{pod}, Nodes: sets.New("n")}, since)
		r.Observe(request, trace, history.Observation{Nodes: sets.New("n")}, since.Add(time.Second))
		return r.Outcome(request, trace, start, 3, since.Add(time.Second)).Pods
	}
	t.Run("M150: the outcome of a drain has the Pods that were observed to terminate", func(t *testing.T) {
		NewWithT(t).Expect(drained(t, start.Add(time.Second))).To(Equal(v1alpha1.EvictedPods{Evicted: 1, Unknown: 1}))
	})
	t.Run("M151: after a restart of the manager, it also has those that only the status counts", func(t *testing.T) {
		NewWithT(t).Expect(drained(t, start.Add(time.Minute))).To(Equal(v1alpha1.EvictedPods{Evicted: 3, Unknown: 3}))
	})
	named := func(name string) history.Pod {
		other := pod
		other.Object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: pod.Object.Spec}
		return other
	}
	t.Run("M168: the outcome of a deletion has the Pods of the drain in place that it continues", func(t *testing.T) {
		g, r := NewWithT(t), NewRecorder(t.Context(), nil)
		inPlace := history.Trace{Root: "nm", Cluster: request.Cluster, Maintenance: "nm", Node: "n"}
		r.Observe(request, inPlace, history.Observation{Pods: []history.Pod{pod}, Nodes: sets.New("n")}, start.Add(time.Second))
		later := start.Add(time.Hour)
		r.Observe(request, inPlace, history.Observation{Pods: []history.Pod{named("meanwhile")}, Nodes: sets.New("n")}, later)
		r.Observe(request, trace, history.Observation{Pods: []history.Pod{named("last")}, Nodes: sets.New("n")}, later.Add(time.Second))
		r.Observe(request, trace, history.Observation{Nodes: sets.New("n")}, later.Add(2*time.Second))
		outcome := r.Outcome(request, trace, start, 3, later.Add(2*time.Second))
		g.Expect(outcome.Applications).To(ConsistOf(
			HaveField("Controller", "Pod /p"), HaveField("Controller", "Pod /meanwhile"), HaveField("Controller", "Pod /last")))
		g.Expect(outcome.Message).To(BeEmpty(), "the manager was not restarted")
	})
	t.Run("M168: it has no Pods of a maintenance that was completed", func(t *testing.T) {
		g, r := NewWithT(t), NewRecorder(t.Context(), nil)
		inPlace := history.Trace{Root: "nm", Cluster: request.Cluster, Maintenance: "nm", Node: "n"}
		r.Observe(request, inPlace, history.Observation{Pods: []history.Pod{pod}, Nodes: sets.New("n")}, start.Add(time.Second))
		r.Observe(request, inPlace, history.Observation{Nodes: sets.New("n")}, start.Add(2*time.Second))
		r.EndMaintenance(request, inPlace, &v1alpha1.NodeMaintenance{}, start.Add(3*time.Second))
		r.Observe(request, trace, history.Observation{Nodes: sets.New("n")}, start.Add(4*time.Second))
		g.Expect(r.Outcome(request, trace, start, 0, start.Add(5*time.Second)).Pods).To(Equal(v1alpha1.EvictedPods{}))
	})
	t.Run("M151: a manager that has observed nothing of the drain knows only what the status counts", func(t *testing.T) {
		r := NewRecorder(t.Context(), nil)
		NewWithT(t).Expect(r.Outcome(request, trace, start, 3, start).Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 3, Unknown: 3}))
	})
}

func TestRecordOutcome(t *testing.T) {
	t.Run("M150: the trace has a span for each reading with other numbers", func(t *testing.T) {
		g, sent := NewWithT(t), tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(givenIDs{}), sdktrace.WithSyncer(sent))
		r := NewRecorder(t.Context(), &Exporter{provider: provider, tracer: provider.Tracer(""), sampler: sdktrace.AlwaysSample()})
		trace := history.Trace{Root: "uid", Cluster: types.NamespacedName{Namespace: "fleet", Name: "c"}, Machine: "m", Node: "n"}
		end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		read := func(after time.Duration, pods v1alpha1.EvictedPods) *v1alpha1.DrainOutcome {
			at := metav1.NewTime(end.Add(after))
			return &v1alpha1.DrainOutcome{EndTime: metav1.NewTime(end), ReadTime: &at, Pods: pods}
		}
		unknown, pending := v1alpha1.EvictedPods{Evicted: 2, Unknown: 2}, v1alpha1.EvictedPods{Evicted: 2, Ready: 1, Pending: 1}
		first, second := read(0, unknown), read(time.Minute, pending)
		r.RecordOutcome(trace, nil, &v1alpha1.DrainOutcome{EndTime: metav1.NewTime(end), Pods: unknown}) // not read
		r.RecordOutcome(trace, &v1alpha1.DrainOutcome{EndTime: metav1.NewTime(end), Pods: unknown}, first)
		r.RecordOutcome(trace, first, second)
		r.RecordOutcome(trace, second, read(3*time.Minute, pending))
		(*Recorder)(nil).RecordOutcome(trace, nil, first)
		spans := sent.GetSpans()
		g.Expect(spans).To(HaveLen(2))
		g.Expect(spans[0].SpanContext.SpanID()).NotTo(Equal(spans[1].SpanContext.SpanID()))
		g.Expect(spans).To(HaveEach(And(HaveField("Name", history.OutcomeSpan), HaveField("StartTime", BeTemporally("==", end)),
			HaveField("Parent.SpanID()", trace.DeletionSpan(end, end, "", "").ID))))
		g.Expect(spans[1].EndTime).To(BeTemporally("==", end.Add(time.Minute)))
		g.Expect(spans[1].Attributes).To(ContainElements(attribute.Int("capnm.pods", 2), attribute.Int("capnm.pods.ready", 1),
			attribute.Int("capnm.pods.pending", 1), attribute.Int("capnm.pods.not_replaced", 0), attribute.String("capnm.machine.name", "m")))
	})
}
