package surge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestReportWithManyConditions(t *testing.T) {
	t.Run("E24: a list of conditions that other clients have filled does not prevent the report", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		for i := range 32 {
			e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{Type: fmt.Sprint("Other", i)})
		}
		surge.Report{Refusal: surge.NotRequested, Message: "not requested"}.Apply(e, time.Now())
		if len(e.Status.Conditions) != 32 || e.Status.Message != "not requested" || !e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
	t.Run("E91: a surge that cannot be recorded ends", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		e.Status.Conditions = make([]metav1.Condition, 32)
		surge.Report{Surged: surge.EventSurged, Message: "scaled"}.Apply(e, time.Now())
		if len(e.Status.Conditions) != 32 || !e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
}

func TestRefusedWrites(t *testing.T) {
	begun := func() *world { return deployed(2).evacuated(2, v1alpha1.SurgeAlways) }
	started := func() *world {
		w := surged(2, 2)
		w.settle()
		return w
	}
	for name, tc := range map[string]struct {
		decide func() (surge.Decision, *world)
		pods   int
	}{
		"the record of the surge": {func() (surge.Decision, *world) { w := begun(); return surge.Decide(w.observed()), w }, 2},
		"the number of replicas":  {func() (surge.Decision, *world) { w := begun(); w.step(); return surge.Decide(w.observed()), w }, 2},
		"minReplicas": {func() (surge.Decision, *world) {
			w := begun().scaledBy(1, 5)
			w.step()
			return surge.Decide(w.observed()), w
		}, 2},
		"the deletion cost of Pods": {func() (surge.Decision, *world) { w := started(); return surge.Decide(w.observed()), w }, 2},
		"a restart": {func() (surge.Decision, *world) {
			r := restarted(1).drained(1, begin)
			r.step()
			return surge.Decide(r.observed()), r.world
		}, 1},
		"not the write that scales back": {func() (surge.Decision, *world) { w := started(); w.step(); return surge.Decide(w.observed()), w }, 0},
		"not the write that reverts the surge": {func() (surge.Decision, *world) {
			w := started()
			clear(w.evacuations)
			return surge.Decide(w.observed()), w
		}, 0},
	} {
		t.Run("E92: the surge ends when the API server has refused a write for half a minute: "+name, func(t *testing.T) {
			d, w := tc.decide()
			denied := errors.New(`patching Deployment shop/web: admission webhook "no.example.com" denied the request: not by hand`)
			if got := d.Refuse(denied, w.now, w.now.Add(29*time.Second)); len(got) > 0 {
				t.Errorf("it ends at once: %v", got)
			}
			got := d.Refuse(denied, w.now, w.now.Add(30*time.Second))
			if len(got) != tc.pods {
				t.Fatalf("got %v", got)
			}
			for _, report := range got {
				if report.Refusal != surge.WriteRefused || !strings.Contains(report.Message, "denied the request: not by hand") {
					t.Errorf("got %v", report)
				}
			}
		})
	}
}

func TestReports(t *testing.T) {
	t.Run("E91: the condition Surged is that of the last report", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		for _, tc := range []struct {
			report surge.Report
			surged string
			status metav1.ConditionStatus
		}{
			{surge.Report{Message: "waiting"}, "", ""},
			{surge.Report{Surged: surge.EventSurged, Message: "scaled"}, surge.EventSurged, metav1.ConditionTrue},
			{surge.Report{Surged: surge.EventSurged, Message: "unschedulable", Stalled: true}, surge.EventSurged, metav1.ConditionTrue},
			{surge.Report{Message: "a later round"}, "", ""},
			{surge.Report{Surged: surge.EventRestarted, Message: "restarted"}, surge.EventRestarted, metav1.ConditionTrue},
			{surge.Report{Refusal: surge.Edited, Message: "edited"}, "", metav1.ConditionFalse},
		} {
			tc.report.Apply(e, time.Now())
			var status metav1.ConditionStatus
			if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged); c != nil {
				status = c.Status
			}
			if surge.SurgedIn(e) != tc.surged || status != tc.status || e.Status.ActiveEvacuatorCompleted != (tc.report.Refusal != "") {
				t.Errorf("%v: got %+v", tc.report, e.Status)
			}
		}
	})
}
