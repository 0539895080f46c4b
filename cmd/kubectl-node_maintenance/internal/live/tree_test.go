package live

import (
	"bytes"
	"context"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
)

// titles are the titles of all rows.
func titles(items []*item) []string {
	var all []string
	for _, r := range rows(items, nil) {
		all = append(all, r.title())
	}
	return all
}

// sceneTree returns the tree after the statuses of the first steps of the scene, ten seconds apart.
func sceneTree(steps int) []*item {
	h := newHistory()
	var items []*item
	for step := range steps {
		now := start.Add(time.Duration(step) * 10 * time.Second)
		s := sceneAt(step)
		h.observe(s, now)
		items = tree(s, h, now)
	}
	return items
}

func TestTree(t *testing.T) {
	t.Run("K8: what waits the longest is on every line above it", func(t *testing.T) {
		g := NewWithT(t)
		cluster := sceneTree(1)[0]
		g.Expect(cluster.text()).To(Equal("2 of 7 maintained: Waiting for 1 of 1 drains to complete: workers-659b9-44cf8"))
		g.Expect(cluster.children[1].children[0].text()).To(Equal("Draining: shop/web-0: " + waitsForBudget))
	})

	t.Run("K9: a filter keeps what is above and below a match", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(titles(filtered(sceneTree(1), "WEB-3"))).To(Equal([]string{
			"Cluster default/eu", "MachineDeployment workers", "Machine workers-659b9-44cf8", "NodeMaintenance workers-659b9-44cf8-1a9da24f", "Pod shop/web-3",
		}))
		g.Expect(titles(filtered(sceneTree(1), "x2x9q"))).To(Equal([]string{"Cluster default/eu", "MachineDeployment workers", "Machine workers-659b9-x2x9q"}))
		g.Expect(titles(filtered(sceneTree(5), "1a9da24f"))).To(HaveLen(7), "with all three Pods")
		g.Expect(filtered(sceneTree(1), "nothing")).To(BeEmpty())
	})

	t.Run("K9: items are sorted by name, elapsed time or remaining Pods, below their parent", func(t *testing.T) {
		g := NewWithT(t)
		items := []*item{
			{kind: "Machine", name: "a", elapsed: time.Second, progress: progress{done: 1, total: 2}},
			{kind: "Machine", name: "b", elapsed: time.Minute},
			{kind: "Machine", name: "c", progress: progress{total: 9}},
		}
		for by, expected := range map[order][]string{
			byName: {"Machine a", "Machine b", "Machine c"}, byElapsed: {"Machine b", "Machine a", "Machine c"}, byPodsLeft: {"Machine c", "Machine a", "Machine b"},
		} {
			sorted(items, by)
			g.Expect(titles(items)).To(Equal(expected), by.String())
		}
	})
}

func TestProgress(t *testing.T) {
	// drain returns the progress after the numbers of remaining Pods, ten seconds apart, and some time after the last one.
	drain := func(blocked []report.BlockedPod, after time.Duration, remaining ...int32) progress {
		h := newHistory()
		m := report.MaintenanceStatus{Name: "m", Stage: "Drain", Since: before(0), Nodes: 1, Blocked: blocked}
		now := start
		for i, n := range remaining {
			m.Evacuated += max(m.Evacuating-n, 0)
			m.Evacuating, now = n, start.Add(time.Duration(i)*10*time.Second)
			h.observe(&report.Status{Maintenances: []report.MaintenanceStatus{m}}, now)
		}
		return h.progressOf("", &m, now.Add(after))
	}
	for name, tc := range map[string]struct {
		is       progress
		expected progress
	}{
		"K8: progress counts Pods that terminated since the start of the drain": {drain(nil, 0, 9, 8), progress{done: 1, total: 9}},
		"K8: Pods that are added count as well":                                 {drain(nil, 0, 9, 8, 10), progress{done: 1, total: 11}},
		"K8: the estimate is the mean rate so far":                              {drain(nil, 0, 9, 8, 7, 6), progress{3, 9, time.Minute}},
		"K8: there is no estimate while no Pod terminates":                      {drain(nil, time.Minute, 9, 8, 7, 6), progress{done: 3, total: 9}},
		"K8: there is no estimate while a Pod waits for something other than its eviction": {
			drain([]report.BlockedPod{{Pod: "job", Why: "Waiting for it to complete"}}, 0, 9, 8, 7, 6), progress{done: 3, total: 9},
		},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(tc.is).To(Equal(tc.expected)) })
	}

	t.Run("K8: the estimate of a drain that begins while the view is open counts from its start, which its status has only later", func(t *testing.T) {
		g := NewWithT(t)
		h := newHistory()
		m := report.MaintenanceStatus{Name: "m", Stage: "Drain", Nodes: 1, Evacuating: 6}
		h.observe(&report.Status{Maintenances: []report.MaintenanceStatus{m}}, start)
		m.Evacuated, m.Evacuating = 3, 3
		h.observe(&report.Status{Maintenances: []report.MaintenanceStatus{m}}, start.Add(30*time.Second))
		g.Expect(h.progressOf("", &m, start.Add(30*time.Second)).left).To(BeZero())
		m.Since = before(0)
		h.observe(&report.Status{Maintenances: []report.MaintenanceStatus{m}}, start.Add(30*time.Second))
		g.Expect(h.progressOf("", &m, start.Add(30*time.Second)).left).To(Equal(30 * time.Second))
	})

	t.Run("K24: the first status of a drain in progress has the Pods that terminated before, and no estimate", func(t *testing.T) {
		h := newHistory()
		m := report.MaintenanceStatus{Name: "m", Stage: "Drain", Since: before(time.Minute), Nodes: 1, Evacuating: 4, Evacuated: 6}
		h.observe(&report.Status{Maintenances: []report.MaintenanceStatus{m}}, start)
		NewWithT(t).Expect(h.progressOf("", &m, start)).To(Equal(progress{done: 6, total: 10}))
	})

	t.Run("K8: a Machine that is deleted is shown as such for a minute", func(t *testing.T) {
		g := NewWithT(t)
		h := newHistory()
		h.observe(sceneAt(0), start)
		gone := func(after time.Duration) []string {
			s := &report.Status{}
			h.observe(s, start.Add(after))
			return titles(filtered(tree(s, h, start.Add(after)), "44cf8"))
		}
		g.Expect(gone(time.Second)).To(Equal([]string{"Cluster default/eu", "MachineDeployment workers", "Machine workers-659b9-44cf8"}))
		g.Expect(gone(2 * time.Minute)).To(BeEmpty())
	})
}

func TestUpdates(t *testing.T) {
	t.Run("K11: many changes cause at most one update in an interval", func(t *testing.T) {
		g := NewWithT(t)
		clock, changed, built := clocktesting.NewFakeClock(start), make(chan struct{}), 0
		channel := updates(t.Context(), Source{Changed: changed, Clock: clock, Status: func() (*report.Status, bool) {
			built++
			return &report.Status{}, true
		}}, redrawInterval)
		changed <- struct{}{}
		g.Expect((<-channel).time).To(Equal(start))
		g.Consistently(changed, "300ms").ShouldNot(BeSent(struct{}{}), "the next change waits")
		clock.Step(redrawInterval)
		changed <- struct{}{}
		g.Expect((<-channel).time).To(Equal(start.Add(redrawInterval)))
		g.Expect(built).To(Equal(2))
		g.Expect(redrawInterval).To(BeNumerically(">=", time.Second/5))
	})
}

func TestPrinter(t *testing.T) {
	t.Run("K10: the lines say once that there are no drains, and not before that is known", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		p := &printer{history: newHistory()}
		for _, complete := range []bool{false, true, true} {
			g.Expect(p.print(&out, update{&report.Status{}, complete, start})).To(Succeed())
		}
		g.Expect(out.String()).To(Equal("12:00:00  There are no drains.\n"))
	})

	t.Run("K10: the lines end with the context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		NewWithT(t).Expect(writeLines(ctx, Source{Clock: clocktesting.NewFakeClock(start)}, &bytes.Buffer{})).To(MatchError(ErrInterrupted))
	})
}

func TestProblems(t *testing.T) {
	t.Run("K12, K55: the view says how many problems it does not name", func(t *testing.T) {
		g := NewWithT(t)
		m := newModel(t.Context(), Source{Clock: clocktesting.NewFakeClock(start)}, nil)
		m.Update(update{status: &report.Status{Gaps: []string{"Cluster a", "Cluster b"}}, time: start})
		g.Expect(m.problems()).To(HaveExactElements("Cluster a", "Cluster b"))
		m.Update(update{status: &report.Status{Gaps: []string{"Cluster a", "Cluster b", "Cluster c"}}, time: start})
		g.Expect(m.problems()).To(HaveExactElements("Cluster a", "2 more, which the command status names without --watch"))
	})
}

func TestMove(t *testing.T) {
	t.Run("K53: a key that selects another row does not compute the rows again", func(t *testing.T) {
		g := NewWithT(t)
		m := newModel(t.Context(), Source{Clock: clocktesting.NewFakeClock(start)}, nil)
		m.Update(update{status: sceneAt(1), complete: true, time: start})
		rows := len(m.rows)
		first := &m.rows[0]
		g.Expect(m.selected).To(Equal(m.rows[0].id))
		m.Update(tea.KeyPressMsg{Code: tea.KeyDown})
		g.Expect(m.selected).To(Equal(m.rows[1].id))
		g.Expect(&m.rows[0]).To(BeIdenticalTo(first))
		m.Update(tea.KeyPressMsg{Code: tea.KeyUp})
		m.Update(tea.KeyPressMsg{Code: tea.KeyLeft})
		g.Expect(len(m.rows)).To(BeNumerically("<", rows), "what is folded is not shown")
	})
}
