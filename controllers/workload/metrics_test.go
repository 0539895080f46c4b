package workload

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

func TestCountActivation(t *testing.T) {
	t.Run("M29: the classes of third parties count as one", func(t *testing.T) {
		active := func(class *string) *v1alpha1.Evacuation {
			return &v1alpha1.Evacuation{Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: class}}
		}
		evacuations.Reset()
		CountActivation(active(nil), active(ptr.To("a.example.com")))
		CountActivation(active(ptr.To("a.example.com")), active(ptr.To("a.example.com"))) // the same turn
		CountActivation(active(ptr.To("a.example.com")), active(ptr.To("b.example.com")))
		CountActivation(active(ptr.To("b.example.com")), active(ptr.To(v1alpha1.EvacuatorClassDeployment)))
		CountActivation(active(ptr.To(v1alpha1.EvacuatorClassDeployment)), active(nil))
		for class, want := range map[string]float64{"other": 2, v1alpha1.EvacuatorClassDeployment: 1} {
			if got := testutil.ToFloat64(evacuations.WithLabelValues(class)); got != want {
				t.Errorf("%s: got %v turns, want %v", class, got, want)
			}
		}
		if got := testutil.CollectAndCount(evacuations); got != 2 {
			t.Errorf("got %d series", got)
		}
	})
}
