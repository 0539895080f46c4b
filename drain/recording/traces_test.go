package recording

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/attribute"
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
	t.Run("says that a drain without its root span is incomplete", func(t *testing.T) {
		g := NewWithT(t)
		h, err := Read(strings.NewReader(otlpJSON(t, pod...)))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(h.Incomplete).NotTo(BeEmpty())
		g.Expect(h.Drains).To(HaveLen(1))
	})
	for name, content := range map[string]string{"no spans": `{"resourceSpans":[]}`, "spans of others": `{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","name":"GET"}]}]}]}`, "no JSON": "kind: List"} {
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
