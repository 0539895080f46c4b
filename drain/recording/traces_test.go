package recording

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/attribute"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

// otlpJSON encodes spans as the OpenTelemetry Collector does.
func otlpJSON(t *testing.T, spans ...history.Span) string {
	t.Helper()
	type value map[string]any
	var encoded []value
	for _, span := range spans {
		var attributes []value
		for _, each := range span.Attributes {
			kind := value{"stringValue": each.Value.AsString()}
			if each.Value.Type() == attribute.INT64 {
				kind = value{"intValue": strconv.FormatInt(each.Value.AsInt64(), 10)}
			}
			attributes = append(attributes, value{"key": string(each.Key), "value": kind})
		}
		one := value{
			"traceId": span.TraceID.String(), "spanId": span.ID.String(), "name": span.Name, "attributes": attributes,
			"startTimeUnixNano": strconv.FormatInt(span.Start.UnixNano(), 10), "endTimeUnixNano": strconv.FormatInt(span.End.UnixNano(), 10),
		}
		if span.Parent.IsValid() {
			one["parentSpanId"] = span.Parent.String()
		}
		encoded = append(encoded, one)
	}
	output, err := json.Marshal(value{"resourceSpans": []value{{"scopeSpans": []value{{"spans": encoded}}}}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(output)
}

func TestReadTraces(t *testing.T) {
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	trace := history.Trace{Root: "4be5b53a", Cluster: types.NamespacedName{Namespace: "ns", Name: "c1"}, Machine: "m", Maintenance: "m-1", Node: "n"}
	pod := trace.EvacuationSpans(&history.Evacuation{
		Namespace: "web", Name: "a", UID: "p", Node: "n", Start: at(3), End: at(50), Refusals: 2, Outcome: history.Terminated, Waits: []history.Wait{
			{Reason: string(budgets.BudgetExhausted), Object: "PodDisruptionBudget web/a", Message: "no", Start: at(3), End: at(40)},
			{Reason: history.WaitEviction, Start: at(40), End: at(41)},
			{Reason: history.WaitTermination, Start: at(41), End: at(50)},
		},
	})
	course := history.Course{Deleted: at(0), Limited: true, DrainStart: ptr.To(at(2)), DrainEnd: at(50), WaitsForVolumes: true, Releasing: at(55)}
	parts := trace.PartSpans(append(course.Before(at(55)), course.After(at(56))...))
	root := trace.DeletionSpan(at(0), at(56), v1alpha1.ReasonMachineDrained, "")

	t.Run("M75: reads a drain from OTLP JSON, whose spans may be in several objects", func(t *testing.T) {
		g := NewWithT(t)
		h, err := Read(strings.NewReader(otlpJSON(t, pod...) + "\n" + `{"result":` + otlpJSON(t, append(parts, root)...) + "}"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Incomplete).To(BeEmpty())
		g.Expect(h.Drains).To(Equal([]Drain{{
			Cluster: "ns/c1", Machine: "ns/m", Maintenance: "m-1", Nodes: []string{"n"}, Deleted: at(0), Start: at(2), End: at(50), Gone: at(56), ended: at(56),
			Phases: []history.Wait{
				{Reason: v1alpha1.ReasonWaitingForTurn, Start: at(0), End: at(2)},
				{Reason: v1alpha1.ReasonMachineDraining, Start: at(2), End: at(50)},
				{Reason: v1alpha1.ReasonWaitingForVolumeDetach, Start: at(50), End: at(55)},
			},
			Pods: []PodCourse{{Name: "web/a", Node: "n", Start: at(3), End: at(50), Ended: true, Refusals: 2, Waits: []history.Wait{
				{Reason: string(budgets.BudgetExhausted), Object: "PodDisruptionBudget web/a", Message: "no", Start: at(3), End: at(40)},
				{Reason: history.WaitEviction, Start: at(40), End: at(41)},
				{Reason: history.WaitTermination, Start: at(41), End: at(50)},
			}}},
		}}))
	})
	t.Run("M75, M150: reads what became of the evicted Pods, as it was last read, which is no part of the drain", func(t *testing.T) {
		g := NewWithT(t)
		outcome := v1alpha1.DrainOutcome{EndTime: metav1.NewTime(at(56)), ReadTime: ptr.To(metav1.NewTime(at(57)))}
		outcome.Pods = v1alpha1.EvictedPods{Evicted: 1, Unknown: 1}
		first := trace.OutcomeSpan(&outcome)
		outcome.ReadTime, outcome.Pods, outcome.Message = ptr.To(metav1.NewTime(at(116))), v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1}, "a message"
		last := trace.OutcomeSpan(&outcome)
		g.Expect(first.ID).NotTo(Equal(last.ID))
		h, err := Read(strings.NewReader(otlpJSON(t, append(append([]history.Span{last, first}, pod...), append(parts, root)...)...)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Incomplete).To(BeEmpty())
		g.Expect(h.Drains).To(HaveLen(1))
		g.Expect(h.End).To(Equal(at(56)))
		g.Expect(h.Outcomes).To(Equal([]Outcome{{
			Cluster: "ns/c1", Machine: "ns/m", Maintenance: "m-1", Node: "n", Ended: at(56), Read: ptr.To(at(116)), Pods: outcome.Pods, Message: "a message",
		}}))
		g.Expect(h.Outcomes[0].Sentence()).To(Equal("1 evicted: 1 not replaced; read 1 min after the end of the drain; a message"))
	})
	isSkipped, isRemoved := "The Node is not drained: the Cluster is being deleted", "Another actor removed the annotation"
	draining := history.Course{Deleted: at(0), Limited: true, DrainStart: ptr.To(at(2)), DrainEnd: at(55), Releasing: at(55)} // the drain had not ended
	ended, unread := draining, history.Course{Deleted: at(0), DrainEnd: at(55), Releasing: at(55)}
	ended.DrainEnd = at(50) // drained, or timed out
	remaining := trace.EvacuationSpans(&history.Evacuation{
		Namespace: "web", Name: "a", UID: "p", Node: "n", Start: at(3), End: at(56), Outcome: history.Remaining,
	})
	const undrained = "1 of 1 drains ended, 1 of them before the Node was drained; "
	const notKnown = "1 of 1 drains ended, of 1 it is not known whether the Node was drained; "
	const lost, more = "Another actor removed the hook", ", and Cluster API drained the Node"
	for name, tc := range map[string]struct {
		outcome, message string
		course           history.Course
		pods             []history.Span
		want, all        string
	}{
		"timed out":                        {v1alpha1.ReasonTimedOut, history.DrainExceeded + "x", course, pod, "The drain timed out after 48 s (1 Pod)", undrained},
		"lost its hook":                    {v1alpha1.ReasonHookRemoved, isRemoved, draining, remaining, lost + " after 53 s (1 Pod)" + more, undrained},
		"lost its hook before a Pod began": {v1alpha1.ReasonHookRemoved, isRemoved, draining, nil, lost + " after 53 s (0 Pods)" + more, undrained},
		"lost its hook after its end":      {v1alpha1.ReasonHookRemoved, isRemoved, ended, pod, lost + " after 53 s (1 Pod)" + more, notKnown},
		"lost its hook after its timeout":  {v1alpha1.ReasonHookRemoved, isRemoved, ended, remaining, lost + " after 53 s (1 Pod)" + more, undrained},
		"lost its hook, and was not read":  {v1alpha1.ReasonHookRemoved, isRemoved, unread, nil, lost + more, notKnown},
		"was skipped":                      {v1alpha1.ReasonSkipped, isSkipped, unread, remaining, "Skipped: " + isSkipped, undrained},
		"was skipped, and was not read":    {v1alpha1.ReasonSkipped, isSkipped, unread, pod, "Skipped: the Cluster is being deleted", notKnown},
		"was not read while volumes timed out": {
			v1alpha1.ReasonTimedOut, "The wait for volumes, which cannot be observed, exceeded nodeVolumeDetachTimeoutSeconds: x", ended, pod,
			"The wait for volumes timed out after 53 s (1 Pod)", notKnown,
		},
	} {
		t.Run("M75, K48: the report is right about a drain that "+name, func(t *testing.T) {
			g := NewWithT(t)
			spans := slices.Concat(tc.pods, trace.PartSpans(append(tc.course.Before(at(55)), tc.course.After(at(56))...)))
			h, err := Read(strings.NewReader(otlpJSON(t, append(spans, trace.DeletionSpan(at(0), at(56), tc.outcome, tc.message))...)))
			g.Expect(err).NotTo(HaveOccurred())
			sentences := h.Drains[0].Summary()
			g.Expect(sentences[0]).To(HavePrefix(tc.want))
			g.Expect(slices.Contains(sentences, "It is not known whether the Node was drained before.")).To(Equal(tc.all == notKnown))
			g.Expect(h.Summary()[0]).To(HavePrefix(tc.all))
		})
	}
	t.Run("M75, K48: volumes that did not detach in time are no drain that timed out", func(t *testing.T) {
		g := NewWithT(t)
		ended := trace.DeletionSpan(at(0), at(56), v1alpha1.ReasonTimedOut, "The volumes did not detach within nodeVolumeDetachTimeoutSeconds: x")
		h, err := Read(strings.NewReader(otlpJSON(t, append(slices.Clone(parts), ended)...)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Drains[0].Summary()).To(Equal([]string{
			"Drained in 48 s (0 Pods).", "The Machine waited 2 s for other drains of the Cluster.", "The Machine waited 5 s for volumes to detach.",
			"The volumes did not detach before the timeout.",
		}))
	})
	t.Run("M75, K48: the NodeMaintenance of a user that was completed while Pods were left was not drained", func(t *testing.T) {
		g := NewWithT(t)
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m-1", CreationTimestamp: metav1.NewTime(at(0))}}
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(at(0))}}
		users := history.Trace{Root: "u", Cluster: trace.Cluster, Maintenance: "m-1"}
		left := users.EvacuationSpans(&history.Evacuation{Namespace: "web", Name: "a", UID: "p", Node: "n", Start: at(1), End: at(60), Outcome: history.Remaining})
		h, err := Read(strings.NewReader(otlpJSON(t, append(users.MaintenanceSpans(m, at(60)), left...)...)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Drains[0].Summary()).To(Equal([]string{"Not drained after 1 min, when the maintenance was ended (1 Pod)."}))
	})
	t.Run("says that a drain without its root span is incomplete", func(t *testing.T) {
		g := NewWithT(t)
		h, err := Read(strings.NewReader(otlpJSON(t, pod...)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Incomplete).NotTo(BeEmpty())
		g.Expect(h.Drains).To(HaveLen(1))
	})
	t.Run("K48: a drain whose result is Drained was drained, also if the span of its stage is missing", func(t *testing.T) {
		g := NewWithT(t)
		h, err := Read(strings.NewReader(otlpJSON(t, root)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Drains[0].Summary()).To(Equal([]string{"Drained; the start of the drain was not recorded (0 Pods)."}))
	})
	t.Run("K48: no result is known of a drain without its root span", func(t *testing.T) {
		g := NewWithT(t)
		h, err := Read(strings.NewReader(otlpJSON(t, append(slices.Clone(pod), parts...)...)))
		g.Expect(err).NotTo(HaveOccurred())
		sentences := h.Drains[0].Summary()
		g.Expect(sentences[0]).To(HavePrefix("No result was recorded in 53 s (1 Pod)"))
		g.Expect(sentences).To(ContainElement("It is not known whether the Node was drained."))
	})
	for name, content := range map[string]string{
		"no spans": `{"resourceSpans":[]}`, "spans of others": `{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","name":"GET"}]}]}]}`,
		"no JSON": "kind: List",
	} {
		t.Run("rejects a file with "+name, func(t *testing.T) {
			_, err := Read(strings.NewReader(content))
			NewWithT(t).Expect(err).To(HaveOccurred())
		})
	}
}

func FuzzReadTraces(f *testing.F) {
	f.Add(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","spanId":"2","name":"evacuate Pod","startTimeUnixNano":"x"}]}]}]}`)
	f.Fuzz(func(t *testing.T, content string) {
		h, err := Read(strings.NewReader(content))
		if err == nil && len(h.Drains) == 0 {
			t.Error("no drain, and no error")
		}
	})
}
