package evictor

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestObserveBlocked(t *testing.T) {
	t.Run("M29: counts blocked Pods by reason, and deletes the series of past reasons", func(t *testing.T) {
		podsBlocked.Reset() // of other tests
		one, two := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "two"}
		r, other := newState(), newState()
		r.observeBlocked(one, map[string]int{"BudgetExhausted": 3, "AdmissionRefused": 1})
		other.observeBlocked(two, map[string]int{"BudgetExhausted": 5})
		r.observeBlocked(one, map[string]int{"BudgetExhausted": 2})
		if got := testutil.ToFloat64(podsBlocked.WithLabelValues("ns", "one", "BudgetExhausted")); got != 2 {
			t.Errorf("got %v, want 2", got)
		}
		if got := testutil.CollectAndCount(podsBlocked); got != 2 {
			t.Errorf("%d series, want one of each Cluster", got)
		}
		r.observeBlocked(one, nil)
		other.observeBlocked(two, nil)
		if got := testutil.CollectAndCount(podsBlocked); got != 0 {
			t.Errorf("%d series, want none", got)
		}
	})
	t.Run("M29: counts no Pod as blocked while the Cluster is paused", func(t *testing.T) {
		g := NewWithT(t)
		paused := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}, Spec: clusterv1.ClusterSpec{Paused: new(true)}}
		v := &Evictor{Clusters: workload.NewClusters(fakes.Client(paused), nil, fakes.Scheme(), workload.Limits{}, clock.RealClock{})}
		p := &pass{cluster: types.NamespacedName{Namespace: "ns", Name: "one"}, state: newState()}
		for reading, counted := range map[error]int{errors.New("timeout"): 1, nil: 0} {
			p.state.observeBlocked(p.cluster, map[string]int{"BudgetExhausted": 3})
			if reading == nil {
				_, reading = v.Clusters.Client(t.Context(), p.cluster)
				g.Expect(workload.IsPaused(reading)).To(BeTrue())
			}
			_, _ = v.fail(p, reading)
			g.Expect(testutil.CollectAndCount(podsBlocked)).To(Equal(counted), "%v", reading)
			p.state.observeBlocked(p.cluster, nil)
		}
	})
}
