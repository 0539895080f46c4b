package surge_test

import (
	"fmt"
	"testing"
	"time"

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
