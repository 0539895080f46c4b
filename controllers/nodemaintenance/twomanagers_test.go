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

func TestTwoManagers(t *testing.T) {
	t.Run("R91: two managers that observe different things replace each other's status once a second", func(t *testing.T) {
		g, cluster, m, writes := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "one"), 0
		server := fakes.Builder(m).WithStatusSubresource(m).WithInterceptorFuncs(beforeStatusPatch(func(client.Object) error {
			writes++
			return nil
		})).Build()
		manager := func() *Reconciler {
			return &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(server, cluster), cluster), Recorder: tracing.NewRecorder(t.Context(), nil)}
		}
		observing := map[*Reconciler]*drainState{manager(): nil, manager(): {decision: plan.MaintenanceDecision{Drained: true}}} // one still connects
		const seconds, perSecond = 10, 50
		for i := range seconds * perSecond {
			for r, drain := range observing {
				s := &scope{
					request: workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)}, client: server, before: &v1alpha1.NodeMaintenance{},
					now:   time.Unix(1_000_000, 0).Add(time.Duration(i) * time.Second / perSecond),
					nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, drain: drain,
				}
				g.Expect(server.Get(t.Context(), client.ObjectKeyFromObject(m), s.before)).To(Succeed())
				s.maintenance = s.before.DeepCopy()
				_, err := r.report(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(s.before.Status.Conditions).NotTo(BeEmpty())
			}
		}
		g.Expect(writes).To(BeNumerically(">", 2*seconds), "each reports what it observes")
		g.Expect(writes).To(BeNumerically("<=", 2*(10+seconds)))
	})
}

func TestDelayedStatus(t *testing.T) {
	t.Run("R91: the end of a drain is recorded, and its outcome read, also if its status is written later than others before it", func(t *testing.T) {
		g, cluster, m, now := NewWithT(t), types.NamespacedName{Namespace: "fleet", Name: "c"}, maintenanceOf("m", "one"), time.Now().Truncate(time.Second)
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
		m.Status.Summary = v1alpha1.NodeMaintenanceSummary{PodsEvacuated: 3, LastProgressTime: new(metav1.NewTime(now.Add(-time.Second)))}
		server := fakes.Builder(m).WithStatusSubresource(m).Build()
		r := &Reconciler{Clusters: clustersWith(clustercache.NewFakeClusterCache(server, cluster), cluster), Recorder: tracing.NewRecorder(t.Context(), nil)}
		request := workload.Request{Cluster: cluster, Object: client.ObjectKeyFromObject(m)}
		for range 20 {
			r.statuses.Record(request, now)
		}
		reconciled := func(at time.Time) *scope {
			s := &scope{
				request: request, client: server, before: &v1alpha1.NodeMaintenance{}, now: at,
				nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, drain: &drainState{decision: plan.MaintenanceDecision{Drained: true}},
			}
			g.Expect(server.Get(t.Context(), request.Object, s.before)).To(Succeed())
			s.maintenance = s.before.DeepCopy()
			for _, step := range []step{r.report, r.readOutcome} {
				done, err := step(t.Context(), s)
				g.Expect(err).NotTo(HaveOccurred())
				if !done {
					break
				}
			}
			return s
		}
		delayed := reconciled(now)
		g.Expect(delayed.before.Status.Conditions).To(BeEmpty())
		g.Expect(delayed.before.Status.Outcome).To(BeNil())
		g.Expect(delayed.requeueAt).To(BeTemporally(">", now))
		last := reconciled(delayed.requeueAt)
		g.Expect(last.before.Status.Conditions).To(ContainElement(And(HaveField("Type", "Drained"), HaveField("Status", metav1.ConditionTrue))))
		g.Expect(last.before.Status.Outcome).NotTo(BeNil())
		g.Expect(r.Recorder.RecordDrained(request, last.trace(), m, now)).To(BeNil(), "the line about the end of the drain was logged")
	})
}
