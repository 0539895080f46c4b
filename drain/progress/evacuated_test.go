package progress

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestEvacuated(t *testing.T) {
	t.Run("K24: the evacuated Pods are counted from the start of the drain", func(t *testing.T) {
		g := NewWithT(t)
		var summary v1alpha1.NodeMaintenanceSummary
		for _, step := range []struct{ pending, evacuating, want int32 }{
			{0, 0, 0}, // before the Pods are observed
			{4, 2, 0},
			{4, 2, 0},
			{3, 2, 1},
			{1, 4, 1}, // a Pod that gets an Evacuation is not evacuated yet
			{3, 4, 1}, // Pods are created
			{0, 5, 3},
			{0, 0, 8},
		} {
			now := v1alpha1.NodeMaintenanceSummary{PodsPending: step.pending, PodsEvacuating: step.evacuating}
			now.PodsEvacuated = Evacuated(summary, now)
			g.Expect(now.PodsEvacuated).To(Equal(step.want), "%+v", step)
			summary = now
		}
	})
}
