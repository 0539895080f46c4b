package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestNextReport(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	condition := func(reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	present := condition(v1alpha1.ReasonWaitingForTurn, "old")
	for name, tc := range map[string]struct {
		wanted metav1.Condition
		writes int // before
		due    time.Duration
	}{
		"R91: another reason is written at once":                   {wanted: condition(v1alpha1.ReasonReconcileFailed, "new"), writes: 9},
		"R91: another message is not":                              {wanted: condition(v1alpha1.ReasonWaitingForTurn, "new"), writes: 1, due: progressInterval},
		"R91: nor is a reason that another manager replaces again": {wanted: condition(v1alpha1.ReasonReconcileFailed, "new"), writes: 10, due: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := &Reconciler{}, &scope{machine: deletedMachine(), now: now}
			conditions.Set(s.machine, present)
			for range tc.writes {
				r.conditions.Record(client.ObjectKeyFromObject(s.machine), now)
			}
			NewWithT(t).Expect(r.nextReport(s, tc.wanted).Sub(now)).To(Equal(tc.due))
		})
	}
}
