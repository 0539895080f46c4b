package machine

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// TestDrainAfterPause: a user pauses a Machine or its Cluster during a drain, changes what the drain depends on, and ends the pause. The
// NodeMaintenance still has the rules of the time before.
func TestDrainAfterPause(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pauses := map[string]func(m *clusterv1.Machine, cluster *clusterv1.Cluster, paused bool){
		"Machine": func(m *clusterv1.Machine, _ *clusterv1.Cluster, paused bool) {
			if delete(m.Annotations, clusterv1.PausedAnnotation); paused {
				m.Annotations[clusterv1.PausedAnnotation] = ""
			}
		},
		"Cluster": func(_ *clusterv1.Machine, cluster *clusterv1.Cluster, paused bool) {
			cluster.Spec.Paused = ptr.To(paused)
		},
	}
	for paused, setPaused := range pauses {
		for name, tc := range map[string]struct {
			during    func(m *clusterv1.Machine)
			newRule   bool
			suspended bool // after the first reconciliation after the pause
		}{
			"M162: after a pause, a drain waits until its NodeMaintenance has a rule that was created during the pause": {newRule: true, suspended: true},
			"M162: after a pause, a drain continues at once if nothing has changed":                                     {},
			"M162: after a pause, a drain does not wait for its update if another actor has removed the hook": {
				newRule: true, during: func(m *clusterv1.Machine) { delete(m.Annotations, v1alpha1.PreDrainHookAnnotation) },
			},
			"M162: after a pause, a drain does not wait for its update if hooks hold it": {
				newRule: true, during: func(m *clusterv1.Machine) {
					m.Annotations[clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other"] = "other"
				},
			},
		} {
			t.Run(name+", "+paused, func(t *testing.T) {
				g, m := NewWithT(t), deletedWorkers(start, "a")[0]
				policy := &v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "all"}}
				management, remote := managementCluster(m).WithObjects(policy).Build(), workloadCluster(m).Build()
				r := newReconciler(t, management, connectedTo(remote, start), clocktesting.NewFakePassiveClock(start))
				infrastructureExists(r, m)
				t.Cleanup(func() { r.forget(client.ObjectKeyFromObject(m)) })
				resumed := make(chan workload.Change, 100)
				r.Clusters.Subscribe(func(change workload.Change) { resumed <- change })
				isSuspended := func() bool {
					stored := &clusterv1.Machine{}
					g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
					all := &v1alpha1.NodeMaintenanceList{}
					g.Expect(remote.List(t.Context(), all)).To(Succeed())
					delete(stored.Annotations, v1alpha1.DrainHeldAnnotation)
					delete(stored.Annotations, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/other")
					suspended, err := r.Maintenances.IsSuspended(t.Context(), &all.Items[0], stored)
					g.Expect(err).NotTo(HaveOccurred())
					return suspended
				}
				change := func(paused bool) {
					stored, cluster := &clusterv1.Machine{}, &clusterv1.Cluster{}
					g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(m), stored)).To(Succeed())
					g.Expect(management.Get(t.Context(), clusterKey, cluster)).To(Succeed())
					if setPaused(stored, cluster, paused); !paused && tc.during != nil {
						tc.during(stored)
					}
					g.Expect(management.Update(t.Context(), stored)).To(Succeed())
					g.Expect(management.Update(t.Context(), cluster)).To(Succeed())
				}
				g.Expect(reconcileAt(t, r, m, start)).To(Succeed())
				g.Expect(isSuspended()).To(BeFalse())
				change(true)
				g.Expect(reconcileAt(t, r, m, start.Add(time.Minute))).To(Succeed())
				if tc.newRule {
					rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "protects"}}
					rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
					g.Expect(management.Create(t.Context(), rule)).To(Succeed())
				}
				change(false)
				g.Expect(isSuspended()).To(BeTrue(), "until the Machine is reconciled")
				g.Expect(reconcileAt(t, r, m, start.Add(2*time.Minute))).To(Succeed())
				g.Expect(isSuspended()).To(Equal(tc.suspended))
				g.Expect(reconcileAt(t, r, m, start.Add(2*time.Minute+time.Second))).To(Succeed())
				g.Expect(isSuspended()).To(BeFalse())
				g.Eventually(resumed).WithTimeout(time.Minute).Should(Receive(HaveField("Type", workload.AllPodsAffected)))
				if drains, _ := drainingIn(t, remote); tc.suspended {
					g.Expect(drains[0].Spec.DrainRules).To(ContainElement(HaveField("Name", rules.MachineDrainRulePrefix+"protects")))
				}
			})
		}
	}
}
