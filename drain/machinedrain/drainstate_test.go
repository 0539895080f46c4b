package machinedrain_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

func TestDrainStateOf(t *testing.T) {
	for _, tc := range []struct {
		name        string
		status      metav1.ConditionStatus
		observed    int64
		isConfirmed bool
		want        machinedrain.DrainState
	}{
		{"M95: believes a confirmed condition", metav1.ConditionTrue, 2, true, machinedrain.DrainComplete},
		{"M95: does not believe the condition of another process or connection", metav1.ConditionTrue, 2, false, machinedrain.DrainUnconfirmed},
		{"M95: does not believe the condition of an earlier generation", metav1.ConditionTrue, 1, true, machinedrain.DrainUnconfirmed},
		{"M95: does not wait for a confirmation while Pods must be drained", metav1.ConditionFalse, 2, false, machinedrain.DrainInProgress},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := draining(0)
			m.Generation = 2
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: tc.status, ObservedGeneration: tc.observed}}
			if got := machinedrain.DrainStateOf(m, tc.isConfirmed); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
