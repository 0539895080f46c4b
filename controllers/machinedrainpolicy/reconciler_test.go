package machinedrainpolicy

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestLongestWaits(t *testing.T) {
	t.Run("M34: lists the five Machines that were deleted first", func(t *testing.T) {
		now := metav1.Now()
		var draining []*clusterv1.Machine
		for i := range 9 {
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i), DeletionTimestamp: &now}}
			m.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForTurn, Message: "waiting",
			}}
			draining = append(draining, m)
		}
		draining[1].Status.Conditions = nil
		waits, result, err := (&Reconciler{}).longestWaits(t.Context(), draining, nil)
		if err != nil || !result.IsZero() {
			t.Fatalf("got %v, %v", result, err)
		}
		var names []string
		for _, wait := range waits {
			names = append(names, wait.Machine)
		}
		if got := strings.Join(names, " "); got != "m0 m2 m3 m4 m5" {
			t.Errorf("got %s", got)
		}
	})
}
