package live

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// outcomeOf returns what became of the Pods of a drain that ended a time before the start of the scene. Three Pods were evicted, and those
// that are not ready are Pending.
func outcomeOf(ago time.Duration, ready int32) v1alpha1.DrainOutcome {
	of := v1alpha1.DrainOutcome{EndTime: metav1.NewTime(start.Add(-ago)), Pods: v1alpha1.EvictedPods{Evicted: 3, Ready: ready, Pending: 3 - ready}}
	of.ReadTime = ptr.To(metav1.NewTime(of.EndTime.Add(time.Minute)))
	if pending := of.Pods.Pending; pending > 0 {
		cache := v1alpha1.EvictedApplication{
			Controller: "Deployment web/cache\x1b[2J", Pods: v1alpha1.EvictedPods{Evicted: pending, Pending: pending}, Why: "Pod cache-0: no Node",
		}
		of.Applications = []v1alpha1.EvictedApplication{cache, cache} // another actor may write it twice
	}
	return of
}

func endedOf(machine string, of v1alpha1.DrainOutcome) outcome.Ended {
	return outcome.Ended{Namespace: "default", RecentDrain: v1alpha1.RecentDrain{Machine: machine, Cluster: "eu", Node: machine, DrainOutcome: of}}
}

// texts are the titles and texts of all rows, indented.
func texts(items []*item) string {
	var b strings.Builder
	for _, r := range rows(items, nil) {
		b.WriteString(strings.Repeat("  ", r.depth) + r.title() + ": " + r.text() + "\n")
	}
	return b.String()
}

func TestEnded(t *testing.T) {
	t.Run("K75: the view says what became of the Pods of drains that have ended, of each Machine once and for a day", func(t *testing.T) {
		g, s := NewWithT(t), &report.Status{}
		s.AddEnded([]outcome.Ended{
			endedOf("w1", outcomeOf(5*time.Minute, 1)), endedOf("w2", outcomeOf(time.Hour, 3)), endedOf("w1", outcomeOf(2*time.Hour, 0)),
			endedOf("w3", outcomeOf(25*time.Hour, 0)),
		})
		items := tree(s, newHistory(), start)
		g.Expect(texts(items)).To(Equal(`Cluster default/eu: 0 of 0 maintained
  Pods of ended drains: 2 drains: 1 with Pods not known to be replaced by ready ones
    Machine w1: ended 5m ago: 3 evicted: 1 replaced and ready, 2 Pending; read 60s after the drain
      Deployment web/cache�[2J: 2 evicted: 2 Pending. Pod cache-0: no Node
    Machine w2: ended 60m ago: 3 evicted: 3 replaced and ready; read 60s after the drain
`))
		ended := items[0].children[0]
		g.Expect([]bool{ended.complete, ended.children[0].complete, ended.children[1].complete}).To(Equal([]bool{false, false, true}), "in green")
		g.Expect(tree(s, newHistory(), start.Add(48*time.Hour))).To(BeEmpty(), "a Cluster without Machines")
		g.Expect(titles(filtered(items, "no node"))).To(HaveLen(4))
		unknown := &report.Status{}
		unknown.AddEnded([]outcome.Ended{endedOf("w1", outcome.Begin(nil, 0, 2, start))})
		g.Expect(texts(tree(unknown, newHistory(), start))).To(ContainSubstring("1 drain: 1 with Pods not known to be replaced by ready ones\n"), "unknown Pods")
	})

	t.Run("K75: the view says what became of the Pods that a NodeMaintenance has evicted", func(t *testing.T) {
		of := outcomeOf(time.Minute, 1)
		of.Message = "The manager was restarted"
		s := &report.Status{Maintenances: []report.MaintenanceStatus{{Name: "m", Stage: "Drain", Nodes: 1, DrainedNodes: 1, Outcome: &of}}}
		NewWithT(t).Expect(texts(tree(s, newHistory(), start))).To(Equal(`NodeMaintenance m: 0 evacuating, 0 pending, 0 skipped
  After the drain: 3 evicted: 1 replaced and ready, 2 Pending; read 60s after the drain. The manager was restarted
    Deployment web/cache�[2J: 2 evicted: 2 Pending. Pod cache-0: no Node
`))
	})

	t.Run("K10, K75: without a terminal, there is a line when another number of Pods is replaced", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		p := &printer{history: newHistory()}
		printed := func(second int, of v1alpha1.DrainOutcome) {
			s := &report.Status{Maintenances: []report.MaintenanceStatus{{Name: "m", Stage: "Cordon", Outcome: &of}}}
			s.AddEnded([]outcome.Ended{endedOf("w1", of)})
			g.Expect(p.print(&out, update{s, true, start.Add(time.Duration(second) * time.Second)})).To(Succeed())
		}
		unread := outcomeOf(0, 0)
		unread.ReadTime = nil
		printed(0, unread)
		for second, ready := range []int32{0, 0, 3} {
			of := outcomeOf(0, ready)
			of.ReadTime.Time = of.ReadTime.Add(time.Duration(second) * time.Minute)
			printed(second+1, of)
		}
		g.Expect(out.String()).To(Equal(`12:00:00  NodeMaintenance m: stage Cordon
12:00:01  After the drain of Machine w1: 3 evicted: 3 Pending
12:00:01  After the drain of Machine w1: Deployment web/cache�[2J: 3 evicted: 3 Pending. Pod cache-0: no Node
12:00:01  After the drain of NodeMaintenance m: 3 evicted: 3 Pending
12:00:01  After the drain of NodeMaintenance m: Deployment web/cache�[2J: 3 evicted: 3 Pending. Pod cache-0: no Node
12:00:03  After the drain of Machine w1: 3 evicted: 3 replaced and ready
12:00:03  After the drain of NodeMaintenance m: 3 evicted: 3 replaced and ready
`))
	})

	t.Run("K75: the guide shows the view after a drain", func(t *testing.T) {
		g, policy := NewWithT(t), v1alpha1.MachineDrainPolicy{}
		policy.Namespace = "default"
		g.Expect(yaml.UnmarshalStrict([]byte(block(t, "machines.md", "recentDrains:")), &policy.Status)).To(Succeed())
		ended := outcome.EndedOf([]v1alpha1.MachineDrainPolicy{policy})
		groups := []report.GroupStatus{{Kind: "ControlPlane", Machines: 1}, {Kind: "MachineDeployment", Name: "workers", Machines: 5}}
		s := &report.Status{Context: "management cluster, context management", Clusters: []report.ClusterStatus{{
			Name: ended[0].ClusterName(), Machines: 6, Groups: groups,
		}}}
		s.AddEnded(ended)
		now := ended[0].EndTime.Add(5 * time.Minute)
		m := newModel(t.Context(), Source{Clock: clocktesting.NewFakeClock(now)}, nil)
		m.Update(tea.WindowSizeMsg{Width: 120, Height: 14})
		m.Update(update{status: s, complete: true, time: now})
		for range 4 { // to the Machine
			m.Update(tea.KeyPressMsg{Code: tea.KeyDown})
		}
		shown := regexp.MustCompile(" +\n").ReplaceAllString(ansi.Strip(m.View().Content)+"\n", "\n")
		g.Expect(block(t, "kubectl.md", "Drains of the management cluster, context management\n"+strings.Repeat(" ", 31)+"PROGRESS")).To(Equal(shown))
	})
}

// block returns the block of a guide that begins with a text, without its fences.
func block(t *testing.T, guide, begin string) string {
	t.Helper()
	content, err := os.ReadFile("../../../../docs/guide/" + guide)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile("(?s)\n```(?:text|yaml)\n(" + regexp.QuoteMeta(begin) + ".*?\n)```\n").FindSubmatch(content)
	NewWithT(t).Expect(found).NotTo(BeNil(), begin)
	return string(found[1])
}
