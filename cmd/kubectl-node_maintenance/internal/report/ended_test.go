package report_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// ended returns a drain that ended some time ago.
func ended(machine string, ago time.Duration, of v1alpha1.DrainOutcome) v1alpha1.RecentDrain {
	of.EndTime = metav1.NewTime(now.Add(-ago))
	return v1alpha1.RecentDrain{Machine: machine, MachineUID: machine, Cluster: "prod", Node: "n-" + machine, DrainOutcome: of}
}

func readAfter(ago, after time.Duration) *metav1.Time {
	return ptr.To(metav1.NewTime(now.Add(after - ago)))
}

// statusOf returns what status says about the drains in a policy.
func statusOf(wide bool, maintenances []v1alpha1.NodeMaintenance, drains ...v1alpha1.RecentDrain) string {
	return writtenWith(&report.Status{Maintenances: report.MaintenancesOf(report.Drains{Maintenances: maintenances}, "")}, wide, drains...)
}

// writtenWith returns what status says, with the drains in a policy.
func writtenWith(s *report.Status, wide bool, drains ...v1alpha1.RecentDrain) string {
	policy := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
	policy.Status.RecentDrains = drains
	s.AddEnded(outcome.EndedOf([]v1alpha1.MachineDrainPolicy{policy}))
	var out bytes.Buffer
	report.WriteStatus(&out, s, wide, now, terminal.Style{})
	return out.String()
}

func TestEnded(t *testing.T) {
	debug := v1alpha1.EvictedApplication{
		Controller: "Pod default/debug", Pods: v1alpha1.EvictedPods{Evicted: 1, NotReplaced: 1}, Why: "The Pod has no controller that recreates it",
	}
	cache := v1alpha1.EvictedApplication{
		Controller: "Deployment web/cache", Pods: v1alpha1.EvictedPods{Evicted: 1, Pending: 1}, Why: "Pod cache-7c9f: 0/5 nodes are available\x1b[2J",
	}
	partly := v1alpha1.DrainOutcome{
		ReadTime: readAfter(12*time.Minute, 10*time.Minute), Pods: v1alpha1.EvictedPods{Evicted: 6, Ready: 4, Pending: 1, NotReplaced: 1},
		Applications: []v1alpha1.EvictedApplication{debug, cache},
	}
	unknown := v1alpha1.DrainOutcome{
		ReadTime: readAfter(time.Hour, time.Minute), Pods: v1alpha1.EvictedPods{Evicted: 2, Unknown: 2},
		Message: "The manager was restarted after 2 Pods of the drain had been evicted",
	}

	t.Run("K61: status says what became of the evicted Pods of recent drains, and of which Pods this is not known", func(t *testing.T) {
		NewWithT(t).Expect(statusOf(false, nil, ended("w3", 25*time.Hour, partly), ended("w2", time.Hour, unknown), ended("w1", 12*time.Minute, partly))).
			To(Equal(`Cluster default/prod
  Evicted Pods of drains that have ended
    Machine default/w1, ended 12m ago: 6 evicted: 4 replaced and ready, 1 Pending, 1 not replaced; read 10m after the drain
      Pod default/debug: 1 evicted: 1 not replaced. The Pod has no controller that recreates it
      Deployment web/cache: 1 evicted: 1 Pending. Pod cache-7c9f: 0/5 nodes are available�[2J
    Machine default/w2, ended 60m ago: 2 evicted: 2 unknown; read 60s after the drain
      The manager was restarted after 2 Pods of the drain had been evicted
`))
	})

	t.Run("K61: the wide format has older drains, and all controllers", func(t *testing.T) {
		many := partly
		many.Applications = nil
		for i := range 12 {
			of := debug
			of.Controller = fmt.Sprintf("Pod default/debug-%d", i)
			many.Applications = append(many.Applications, of)
		}
		g := NewWithT(t)
		text := statusOf(false, nil, ended("w3", time.Minute, many))
		g.Expect(text).To(HaveSuffix("Pod default/debug-9: 1 evicted: 1 not replaced. The Pod has no controller that recreates it\n      2 more controllers\n"))
		text = statusOf(true, nil, ended("w3", 25*time.Hour, many))
		g.Expect(text).To(ContainSubstring("    Machine default/w3, Node n-w3, ended 25h ago: 6 evicted"))
		g.Expect(strings.Count(text, "Pod default/debug-")).To(Equal(12))
	})

	t.Run("K61: status says of a Cluster without Machines that its drains are older than a day", func(t *testing.T) {
		text := statusOf(false, nil, ended("w2", 25*time.Hour, partly), ended("w1", 26*time.Hour, partly))
		NewWithT(t).Expect(text).To(Equal(`Cluster default/prod
  2 drains ended more than a day ago: -o wide shows what became of the evicted Pods
`))
	})

	t.Run("K61: status says once what became of the Pods of a Machine that exists after its drain", func(t *testing.T) {
		g := NewWithT(t)
		inPlace := ended("", 20*time.Minute, partly).DrainOutcome // what its NodeMaintenance says
		text := func(deleted, ended1 time.Duration) string {
			m := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w1", DeletionTimestamp: ptr.To(metav1.NewTime(now.Add(-deleted)))}}
			m.Spec.ClusterName = "prod"
			maintenance := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
			maintenance.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "default/w1"}
			maintenance.Status.Outcome = &inPlace
			s := &report.Status{Clusters: report.StatusOf([]clusterv1.Machine{m}, map[string]report.Drains{
				"default/prod": {Maintenances: []v1alpha1.NodeMaintenance{maintenance}},
			})}
			return writtenWith(s, false, ended("w1", ended1, unknown))
		}
		for _, ago := range []time.Duration{12 * time.Minute, 20 * time.Minute} {
			g.Expect(text(30*time.Minute, ago)).To(And(ContainSubstring("Machine default/w1, ended "), Not(ContainSubstring("After the drain"))))
		}
		g.Expect(text(10*time.Minute, time.Hour)).To(And(ContainSubstring("Machine default/w1, ended "), ContainSubstring("After the drain")), "an earlier Machine")
	})

	t.Run("K61: status says what became of the Pods that a NodeMaintenance has evicted", func(t *testing.T) {
		m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
		m.Spec.Stage, m.Status.Outcome = v1alpha1.StageDrain, ptr.To(ended("", time.Minute, partly).DrainOutcome)
		NewWithT(t).Expect(statusOf(false, []v1alpha1.NodeMaintenance{m})).To(ContainSubstring(`; 0 of 0 Nodes drained
  After the drain: 6 evicted: 4 replaced and ready, 1 Pending, 1 not replaced; read 0s after the drain
    Pod default/debug: 1 evicted: 1 not replaced. The Pod has no controller that recreates it
`))
	})

	t.Run("K61: numbers and times that another actor has written end nothing", func(t *testing.T) {
		odd := v1alpha1.DrainOutcome{ReadTime: readAfter(0, -time.Hour), Pods: v1alpha1.EvictedPods{Evicted: -1, Ready: -5, Pending: 3}}
		NewWithT(t).Expect(statusOf(false, nil, ended("w1", -time.Hour, odd))).To(ContainSubstring("Machine default/w1, ended 0s ago: -1 evicted: 3 Pending"))
	})
}

func TestBlockedOfNodes(t *testing.T) {
	t.Run("K37: the age of Pods of several Nodes that wait for the same is that of the oldest wait", func(t *testing.T) {
		m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "rack"}}
		m.Spec.Stage = v1alpha1.StageDrain
		for i, ago := range []time.Duration{2 * time.Minute, 50 * time.Minute} {
			name := string("ab"[i])
			m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
				NodeRef: v1alpha1.NodeReference{Name: name},
				Blocked: []v1alpha1.BlockedPod{{Pod: "shop/" + name, Why: "waiting", Since: ptr.To(metav1.NewTime(now.Add(-ago)))}},
			})
		}
		NewWithT(t).Expect(statusOf(false, []v1alpha1.NodeMaintenance{m})).To(ContainSubstring("Pods shop/a, shop/b for at most 50m, now: waiting"))
	})
}
