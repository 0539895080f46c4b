package evacuation_test

import (
	"testing"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestAwaitsBudgets(t *testing.T) {
	started, notStarted := drain(unlimited, "one"), drain(func(m *v1alpha1.NodeMaintenance) { m.Status.StageStatuses = nil })
	for _, tc := range []struct {
		name   string
		m      v1alpha1.NodeMaintenance
		known  bool
		after  time.Duration // since the start of the drain
		until  time.Duration
		awaits bool
	}{
		{"E43: waits after the start of the drain", started, false, time.Second, 2 * time.Second, true},
		{"E43: waits before the start of the drain", notStarted, false, time.Hour, time.Hour + 2*time.Second, true},
		{"E43: does not wait for known budgets", started, true, time.Second, 2 * time.Second, false},
		{"E43: waits no longer than two seconds", started, false, 2 * time.Second, 2 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			until, awaits := evacuation.AwaitsBudgets(&tc.m, tc.known, noon.Add(tc.after))
			if awaits != tc.awaits || !until.Equal(noon.Add(tc.until)) {
				t.Errorf("got %s, %t", until, awaits)
			}
		})
	}
}
