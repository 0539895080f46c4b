package plan_test

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func TestRows(t *testing.T) {
	t.Run("R26: the row of a selector is as high as the entries before it without one", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10).app("db"), upTo(20), upTo(30).app("db")),
			pod("db").on("one").priority(5).app("db"), pod("web").on("one").priority(15),
		).
			expect(node("one").of("m").targets(upTo(10).app("db"))).
			gone("db").expect(node("one").of("m").targets(upTo(20), upTo(20).app("db")))
	})
	t.Run("R26: orders are shown when they aren't 0, and begin with the first priority again", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(everyPriority)),
			pod("early").on("one").priority(20).ordered(-3, "m"),
			pod("high").on("one").priority(20),
			pod("late").on("one").priority(5).ordered(4, "m"), pod("latest").on("one").priority(20).ordered(4, "m"),
			pod("daemon").on("one").daemonSet(),
		).
			expect(node("one").of("m").targets(upTo(1000000000).order(-3))).
			gone("early").expect(node("one").of("m").targets(upTo(1000000000))).
			gone("high").expect(node("one").of("m").targets(upTo(10).order(4))).
			expectTargeted("late").
			gone("late").expect(node("one").of("m").targets(upTo(1000000000).order(4))).
			gone("latest").expect(node("one").of("m").targets(upTo(1000000000).order(4), upTo(1000000000).daemonSets()))
	})
	t.Run("R26: selectors of overlapping maintenances are rows of both where they say more", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10), upTo(30).app("db"), upTo(40)),
			maintenance("b").draining("one", "two").plan(upTo(20), upTo(50)),
			pod("db").on("one").priority(20).app("db"), pod("web").on("one").priority(20),
			pod("other").on("two").priority(20),
		).
			expectTargeted("db", "other").
			expect(
				node("one").of("a").targets(upTo(10), upTo(20).app("db")).says("Evacuating"),
				node("one").of("b").targets(upTo(10), upTo(20).app("db")).says("Evacuating (limited by a)"),
				node("two").of("b").targets(upTo(20)),
			).
			gone("db").expect(
			node("one").of("a").targets(upTo(20), upTo(20).app("db")),
			node("one").of("b").targets(upTo(20), upTo(20).app("db")), // published before
		)
	})
	t.Run("R26: publishes what a new maintenance is fast-forwarded to, with its selectors", func(t *testing.T) {
		given(t,
			maintenance("old").draining("one").plan(upTo(20)).published("one", upTo(20)),
			maintenance("new").draining("one", "two").plan(upTo(5).app("db"), upTo(10)),
			pod("p").on("one").priority(20), pod("q").on("two").app("db"),
		).expect(
			node("one").of("new").targets(upTo(20), upTo(20).app("db")),
			node("one").of("old").targets(upTo(20)),
			node("two").of("new").targets(upTo(5).app("db")),
		)
	})
	t.Run("R26: keeps the rows of a maintenance that has ended", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(5).app("db"), upTo(5).app("web"), upTo(10)).
				published("one", upTo(3), upTo(9).app("cache"), upTo(1).app("queue")),
			pod("p").on("one").app("db"),
		).expect(node("one").of("m").targets(
			upTo(3), upTo(9).app("cache"), upTo(5).app("db"), upTo(3).app("queue"), upTo(3).app("web")))
	})
	t.Run("R26: publishes no row for maintenances that contradict from the start", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10).app("x"), upTo(10).app("y")),
			maintenance("b").draining("one").plan(upTo(10).app("y"), upTo(10).app("x")),
			pod("x").on("one").app("x"), pod("y").on("one").app("y"),
		).expect(node("one").of("a").targets(), node("one").of("b").targets())
	})
	all := []entry{upTo(everyPriority), upTo(everyPriority).app("db"), upTo(everyPriority).daemonSets(), upTo(everyPriority).statics()}
	t.Run("R47: a maintenance without a live Pod publishes all rows of its plan, and Pods created later are targets immediately", func(t *testing.T) {
		given(t, maintenance("m").draining("one").plan(upTo(10), upTo(20).app("db"))).
			expect(node("one").of("m").targets(all...).says("Drained")).
			and(pod("low").on("one").priority(5), pod("high").on("one").priority(30), pod("logs").on("one").daemonSet()).
			expectTargeted("low", "high", "logs").
			expect(node("one").of("m").targets(all...))
	})
	t.Run("R47: Pods with a drain order created later are drained in that order", func(t *testing.T) {
		given(t, maintenance("m").draining("one")).
			expectDrained("m", true).
			and(pod("first").on("one").ordered(1, "m"), pod("second").on("one").ordered(2, "m")).
			expectTargeted("first").
			gone("first").expectTargeted("second")
	})
	t.Run("R47: rows stay in order while a Pod is live, and reach the end with the last one", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20).app("db")),
			pod("web").on("one").priority(5), pod("job").on("two").completesFor("m"),
		).
			expect(node("one").of("m").targets(upTo(10), upTo(10).app("db"))).
			gone("web").expect(node("one").of("m").targets(upTo(10), upTo(10).app("db")).says("Drained")).
			gone("job").expect(node("one").of("m").targets(all...), node("two").of("m").targets(all...))
	})
	t.Run("R47: Pod types that the rules skip have no rows ahead of time, and drain in order once the rules drain them", func(t *testing.T) {
		m := maintenance("m").draining("one").skippingTypes(v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic)
		s := given(t, m, pod("logs").on("one").daemonSet().skippedBy("m"), pod("network").on("one").daemonSet().priority(2000001000).skippedBy("m")).
			expect(node("one").of("m").targets(upTo(everyPriority)).says("Drained"))
		m.skippingTypes(v1alpha1.PodTypeStatic)
		s.change("logs", func(p *podBuilder) { p.drainsFor("m") }).change("network", func(p *podBuilder) { p.drainsFor("m") }).
			expectTargeted("logs").
			expect(node("one").of("m").targets(upTo(everyPriority), upTo(1000000000).daemonSets())).
			gone("logs").expectTargeted("network")
	})
	t.Run("R47: a maintenance that skips a Pod type does not limit the rows of one that drains it", func(t *testing.T) {
		given(t,
			maintenance("machine").draining("one").skippingTypes(v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic),
			maintenance("m").draining("one"),
		).expect(node("one").of("machine").targets(upTo(everyPriority), upTo(everyPriority).daemonSets(), upTo(everyPriority).statics()))
	})
	t.Run("R47: a maintenance that skips a Pod type and drains other Nodes does not limit the rows of one that drains it", func(t *testing.T) {
		given(t,
			maintenance("pool").draining("one", "two").skippingTypes(v1alpha1.PodTypeDaemonSet), pod("blocked").on("two"),
			maintenance("machine").draining("one").servingMachine(), pod("logs").on("one").daemonSet().skippedBy("pool"),
		).expectTargeted("blocked", "logs").expect(
			node("one").of("machine").targets(upTo(1000000000), upTo(1000000000).daemonSets()),
			node("one").of("pool").targets(upTo(1000000000), upTo(1000000000).daemonSets()),
			node("two").of("pool").targets(upTo(1000000000)),
		)
	})
	t.Run("R25, R47: unless an earlier rule drains a Pod of that type on any of its Nodes", func(t *testing.T) {
		given(t,
			maintenance("pool").draining("one", "two").skippingTypes(v1alpha1.PodTypeDaemonSet), pod("blocked").on("two"), pod("last").on("two").daemonSet(),
			maintenance("machine").draining("one").servingMachine(), pod("logs").on("one").daemonSet().skippedBy("pool"),
		).expectTargeted("blocked", "logs").expect(node("one").of("machine").targets(upTo(1000000000))).
			gone("blocked").expect(node("one").of("machine").targets(upTo(everyPriority), upTo(1000000000).daemonSets()))
	})
	t.Run("R47: the maintenance of a Machine that skips a Pod type limits its rows until it has drained its Node", func(t *testing.T) {
		given(t,
			maintenance("machine").draining("one").skippingTypes(v1alpha1.PodTypeDaemonSet).servingMachine(), pod("web").on("one").skippedBy("pool"),
			maintenance("pool").draining("one"), pod("csi").on("one").daemonSet().skippedBy("machine"),
		).expect(node("one").of("pool").targets(upTo(1000000000))).
			gone("web").expect(node("one").of("pool").targets(upTo(everyPriority), upTo(1000000000).daemonSets()))
	})
	t.Run("M130: that of a deleted Machine keeps the Pods of DaemonSets also after that, until it drains them itself: its volumes are detached last",
		func(t *testing.T) {
			machine := maintenance("machine").draining("one").skippingTypes(v1alpha1.PodTypeDaemonSet).servingDeletion()
			s := given(t, machine, maintenance("pool").draining("one", "two"), pod("csi").on("one").daemonSet().skippedBy("machine"), pod("logs").on("two").daemonSet()).
				expect(node("one").of("pool").targets(upTo(everyPriority)), node("two").of("pool").targets(upTo(everyPriority), upTo(1000000000).daemonSets()))
			machine.skippingTypes()
			s.change("csi", func(p *podBuilder) { p.drainsFor("machine") }).
				expect(node("one").of("pool").targets(upTo(everyPriority), upTo(1000000000).daemonSets()))
		})
	t.Run("M130: but not those that others have drained before", func(t *testing.T) {
		given(t,
			maintenance("pool").draining("one").published("one", upTo(everyPriority), upTo(everyPriority).daemonSets()),
			maintenance("machine").draining("one").skippingTypes(v1alpha1.PodTypeDaemonSet).servingDeletion(),
		).expect(node("one").of("pool").targets(upTo(everyPriority), upTo(everyPriority).daemonSets(), upTo(everyPriority).statics()))
	})
	t.Run("R25, R47: a newer maintenance is fast-forwarded to the end, and still drains the Nodes that it does not share in order", func(t *testing.T) {
		given(t,
			maintenance("old").draining("one"),
		).
			expectDrained("old", true).
			and(maintenance("new").draining("one", "two").plan(upTo(10)),
				pod("late").on("one").priority(20), pod("low").on("two").priority(5), pod("high").on("two").priority(20)).
			expectTargeted("late", "low").
			gone("low").expectTargeted("late", "high")
	})
	t.Run("R26: a maintenance without a live Pod does not limit the rows", func(t *testing.T) {
		given(t,
			maintenance("done").draining("one").plan(upTo(10)),
			maintenance("m").draining("one").plan(upTo(20)),
			pod("p").on("one").priority(20).skippedBy("done"),
		).expect(
			node("one").of("m").targets(upTo(20)),
			node("one").of("done").targets(upTo(20)).says("Drained"),
		)
	})
	t.Run("R26: publishes at most as many rows as a status can contain", func(t *testing.T) {
		m := maintenance("new").draining("one")
		for i := range int32(300) {
			m.published("one", append(published(m), upTo(i).app(string('A'+i)))...)
		}
		s := given(t, m, pod("p").on("one")).decide()
		rows := s.decision.Maintenances["new"].Nodes["one"].Targets
		if len(rows) > 192 {
			t.Errorf("%d rows", len(rows))
		}
		if !plan.CoversPod(rows, plan.Pod{}, 0) {
			t.Errorf("its own row has been dropped")
		}
	})
}

func published(m *maintenanceBuilder) []entry {
	var rows []entry
	for _, row := range m.Published["one"] {
		rows = append(rows, entry{row})
	}
	return rows
}

func TestCovers(t *testing.T) {
	rows := targets([]entry{upTo(10).order(5), upTo(20).order(5).app("db"), upTo(30).daemonSets()})
	for name, test := range map[string]struct {
		pod      *podBuilder
		order    int32
		expected bool
	}{
		"R26: a lower order, whatever the priority": {pod("p").priority(1000), 4, true},
		"R26: the order, up to the priority":        {pod("p").priority(10), 5, true},
		"R26: the order, beyond the priority":       {pod("p").priority(11), 5, false},
		"R26: a later order":                        {pod("p"), 6, false},
		"R26: the order, by selector":               {pod("p").priority(20).app("db"), 5, true},
		"R26: the order, by another one's selector": {pod("p").priority(20).app("web"), 5, false},
		"R26: another type":                         {pod("p").priority(30).daemonSet(), 0, true},
		"R26: another type, beyond":                 {pod("p").priority(31).daemonSet(), 0, false},
		"R26: a type that has not been reached":     {pod("p").static(), 0, false},
		"R26: a type that isn't known is like most": {&podBuilder{Pod: plan.Pod{Type: v1alpha1.PodType("New")}}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := plan.CoversPod(rows, test.pod.Pod, test.order); got != test.expected {
				t.Errorf("covered: %v", got)
			}
		})
	}
}
