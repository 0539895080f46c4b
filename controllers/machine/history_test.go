package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
)

func TestEvicted(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	deleted := began.Add(time.Hour)
	evicted := func(t *testing.T, inPlace *v1alpha1.DrainOutcome) v1alpha1.DrainOutcome {
		t.Helper()
		r := &Reconciler{Recorder: tracing.NewRecorder(t.Context(), nil), Clock: clocktesting.NewFakePassiveClock(deleted.Add(time.Minute))}
		s := &scope{now: deleted.Add(time.Minute), machine: &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m", UID: "m", DeletionTimestamp: &metav1.Time{Time: deleted}},
			Spec:       clusterv1.MachineSpec{ClusterName: "c"},
		}}
		m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "nm", UID: "nm"}}
		m.Status.Outcome, m.Status.Summary.PodsEvacuated = inPlace, 3
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(began)}}
		s.observe(m)
		restarted := began.Add(30 * time.Minute)
		r.Recorder.Observe(s.maintenanceRequest(), history.Trace{Root: m.UID, Maintenance: m.Name}, history.Observation{Nodes: sets.New("n")}, restarted)
		return r.evicted(s)
	}
	t.Run("M168: a drain in place that ended before the deletion and a restart of the manager leaves no unknown Pods", func(t *testing.T) {
		NewWithT(t).Expect(evicted(t, &v1alpha1.DrainOutcome{EndTime: metav1.NewTime(began.Add(time.Minute))}).Pods).To(Equal(v1alpha1.EvictedPods{}))
	})
	t.Run("M151: Pods of a drain in place that the deletion continues are unknown after a restart of the manager", func(t *testing.T) {
		NewWithT(t).Expect(evicted(t, nil).Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 3, Unknown: 3}))
	})
}
