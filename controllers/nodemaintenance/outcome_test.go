package nodemaintenance

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/test/fakes"
)

func TestDrainedAgain(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	ended := now.Add(-2 * time.Hour)
	for name, tc := range map[string]struct {
		progress time.Time
		reports  bool // a drain that has ended
	}{
		"R88: a drain does not end again because the Pods were listed again":         {progress: ended},
		"R88: it ends again when Pods that were scheduled meanwhile have terminated": {progress: now.Add(-time.Minute), reports: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, cluster, m := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "one")
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(ended.Add(-time.Hour))}}
			m.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodsNotObserved, LastTransitionTime: metav1.NewTime(now),
			}}
			m.Status.Summary = v1alpha1.NodeMaintenanceSummary{PodsEvacuated: 3, LastProgressTime: new(metav1.NewTime(tc.progress))}
			known := v1alpha1.DrainOutcome{
				EndTime: metav1.NewTime(ended), ReadTime: new(metav1.NewTime(ended.Add(10 * time.Minute))), Pods: v1alpha1.EvictedPods{Evicted: 3, Ready: 3},
			}
			m.Status.Outcome = known.DeepCopy()
			server := fakes.Builder(m).WithStatusSubresource(m).Build()
			r := &Reconciler{
				Clusters: clustersWith(clustercache.NewFakeClusterCache(server, cluster), cluster), Recorder: tracing.NewRecorder(t.Context(), nil),
			}
			s := &scope{
				request: workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)}, client: server, before: &v1alpha1.NodeMaintenance{}, now: now,
				nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, drain: &drainState{decision: plan.MaintenanceDecision{Drained: true}},
			}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), s.before)).To(Succeed())
			s.maintenance = s.before.DeepCopy()
			for _, step := range []step{r.report, r.readOutcome} {
				_, err := step(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
			}
			stored := &v1alpha1.NodeMaintenance{}
			g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
			g.Expect(stored.Status.Conditions).To(ContainElement(And(HaveField("Type", "Drained"), HaveField("Status", metav1.ConditionTrue))))
			if tc.reports {
				g.Expect(stored.Status.Outcome.EndTime.Time).To(BeTemporally("==", now))
				g.Expect(stored.Status.Outcome.Pods).To(Equal(v1alpha1.EvictedPods{Evicted: 3, Unknown: 3}), "an earlier process has evicted them")
			} else {
				g.Expect(stored.Status.Outcome.EndTime.Time).To(BeTemporally("==", ended))
				g.Expect(stored.Status.Outcome.Pods).To(Equal(known.Pods))
			}
			g.Expect(r.Recorder.RecordDrained(s.request, s.trace(), m, now) == nil).To(Equal(tc.reports), "the line about the end of the drain was logged")
		})
	}
}
