package surge_test

import (
	"fmt"
	"testing"
	"time"

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
}
