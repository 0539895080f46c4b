package plan_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func TestSteps(t *testing.T) {
	t.Run("R23: the next step begins when no live pod of the steps so far is left on any node", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20)),
			pod("low-1").on("one").priority(10), pod("high-1").on("one").priority(20),
			pod("low-2").on("two").priority(3), pod("high-2").on("two").priority(11),
		).
			expectTargeted("low-1", "low-2").
			gone("low-1").expectTargeted("low-2").
			gone("low-2").expectTargeted("high-1", "high-2")
	})
	t.Run("R23: steps without pods are passed over", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(20), upTo(30)),
			pod("p").on("one").priority(25),
		).
			expectTargeted("p").
			expect(node("one").of("m").targets(upTo(30)))
	})
	t.Run("R23: types go one after the other, whatever their priorities", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"),
			pod("default").on("one").priority(2000001000),
			pod("daemon").on("one").daemonSet(),
			pod("static").on("one").static(),
		).
			expectTargeted("default").
			gone("default").expectTargeted("daemon").
			gone("daemon").expectTargeted("static")
	})
	t.Run("R23: orders of drain rules sort the pods of a type, before priorities do", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10)),
			pod("first").on("one").priority(5000).ordered(-1, "m"),
			pod("low").on("one").priority(10), pod("high").on("one").priority(11),
			pod("last").on("one").priority(1).ordered(7, "m"),
			pod("daemon").on("one").daemonSet().ordered(-5, "m"),
		).
			expectTargeted("first").
			gone("first").expectTargeted("low").
			gone("low").expectTargeted("high").
			gone("high").expectTargeted("last").
			gone("last").expectTargeted("daemon")
	})
	t.Run("R23: a pod stands at the first entry that selects it", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10).app("db"), upTo(20), upTo(30).app("db")),
			pod("db").on("one").priority(10).app("db"),
			pod("db-20").on("one").priority(20).app("db"), pod("web-20").on("one").priority(20),
			pod("db-30").on("one").priority(30).app("db"), pod("web-30").on("one").priority(30),
		).
			expectTargeted("db").
			gone("db").expectTargeted("db-20", "web-20").
			gone("db-20", "web-20").expectTargeted("db-30").
			gone("db-30").expectTargeted("web-30")
	})
	t.Run("R23: a pod that is to complete holds the step of order 0, and is never targeted", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10)),
			pod("job").on("one").priority(10).completesFor("m"),
			pod("low").on("two").priority(10), pod("high").on("two").priority(20),
		).
			expectTargeted("low").
			gone("low").expectTargeted().
			expect(
				node("one").of("m").says("Waiting for pod default/job to complete.").pods(0, 0, 0),
				node("two").of("m").says("Waiting for node one."),
			).
			expectBlocking("m", "Waiting for pod default/job on node one to complete.").
			change("job", func(p *podBuilder) { p.finished() }).expectTargeted("high").
			gone("high").expectDrained("m", true)
	})
	t.Run("R23: a finished pod holds nothing back", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10)),
			pod("done").on("one").finished(),
			pod("high").on("one").priority(20),
		).
			expectTargeted("high").
			gone("high").expectDrained("m", true)
	})
	t.Run("R23: a pod that is undecided holds its step, and is not touched", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10)),
			pod("low").on("one").undecidedFor("m"), pod("high").on("one").priority(20),
		).
			expectTargeted().
			expect(node("one").of("m").pods(2, 0, 0).
				says("Waiting for pod default/low: what to do with it is undecided.")).
			expectBlocking("m", "Waiting for pod default/low on node one: what to do with it is undecided.").
			expectDrained("m", false).
			change("low", func(p *podBuilder) { p.drainsFor("m") }).expectTargeted("low").
			gone("low").expectTargeted("high")
	})
	t.Run("R21: a pod that appears at an earlier step goes too, at once", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20)),
			pod("middle").on("one").priority(20), pod("high").on("one").priority(30),
		).
			expectTargeted("middle").
			and(pod("late").on("two").priority(5)).expectTargeted("middle", "late").
			gone("middle").expectTargeted("late").
			gone("late").expectTargeted("high")
	})
	t.Run("R15: a node that joins starts at the current step, one that leaves is left alone", func(t *testing.T) {
		m := maintenance("m").draining("one").plan(upTo(10), upTo(20))
		s := given(t, m,
			pod("middle").on("one").priority(20),
			pod("joins").on("two").priority(15), pod("high").on("two").priority(30),
		).expectTargeted("middle")
		m.Nodes = []string{"one", "two"}
		s.expectTargeted("middle", "joins").expect(node("two").of("m").targets(upTo(20)).says("Evacuating"))
		m.Nodes = []string{"two"}
		s.expectTargeted("joins")
	})
}

func TestProgressNeverBacktracks(t *testing.T) {
	t.Run("R24: a pod under the published rows is targeted, whatever the cursor says", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20)).
				published("one", upTo(20)).published("two", upTo(20)),
			pod("low").on("one").priority(10),
			pod("covered").on("two").priority(20), pod("beyond").on("two").priority(21),
		).
			expectTargeted("low", "covered").
			expect(node("two").of("m").targets(upTo(20)).says("Evacuating"))
	})
	t.Run("R24: a pod that holds an Evacuation keeps it, when all rows are lost too", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(20)),
			pod("low").on("one").priority(10),
			pod("high").on("one").priority(20).evacuating(),
			pod("waits").on("one").priority(20),
		).expectTargeted("low", "high")
	})
	t.Run("R24: rows stay as high as they were published", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(20)).published("one", upTo(15), upTo(3).daemonSets()),
			pod("low").on("one").priority(10),
		).expect(node("one").of("m").targets(upTo(15), upTo(3).daemonSets()))
	})
	t.Run("R24: a status that was written for one of two maintenances counts for both", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10), upTo(20)).published("one", upTo(20)),
			maintenance("b").draining("one").plan(upTo(10), upTo(20)).published("one", upTo(10)),
			pod("low").on("one").priority(10), pod("high").on("one").priority(20),
		).
			expectTargeted("low", "high").
			expect(node("one").of("b").targets(upTo(20)))
	})
	for name, change := range map[string]func(*podBuilder){
		"R24: a verdict that turns to Skip takes the pod out":          func(p *podBuilder) { p.skippedBy("m") },
		"R24: a verdict that turns to WaitCompleted takes the pod out": func(p *podBuilder) { p.completesFor("m") },
		"R24: a verdict that isn't known any more takes the pod out":   func(p *podBuilder) { p.undecidedFor("m") },
	} {
		t.Run(name, func(t *testing.T) {
			given(t,
				maintenance("m").draining("one"),
				pod("p").on("one"), pod("q").on("one"),
			).
				expectTargeted("p", "q").
				change("p", change).expectTargeted("q").
				change("p", func(p *podBuilder) { p.drainsFor("m") }).expectTargeted("p", "q")
		})
	}
	t.Run("R24: a verdict that turns to a later order doesn't take the pod out", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one"), pod("q").on("one")).
			expectTargeted("p", "q").
			change("p", func(p *podBuilder) { p.ordered(5, "m") }).expectTargeted("p", "q")
	})
	t.Run("R24: a pod that finishes while it is evacuated keeps its Evacuation", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one")).
			expectTargeted("p").
			change("p", func(p *podBuilder) { p.finished() }).expectTargeted("p").
			expect(node("one").of("m").says("Drained").pods(0, 0, 0))
	})
}

func TestOverlappingMaintenances(t *testing.T) {
	t.Run("R25: the least powerful maintenance limits the node", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10), upTo(30)),
			maintenance("b").draining("one").plan(upTo(20), upTo(30)),
			pod("low").on("one").priority(10), pod("middle").on("one").priority(20),
		).
			expectTargeted("low").
			gone("low").expectTargeted("middle")
	})
	t.Run("R25: a maintenance that skips a pod has no say about it", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one", "two"),
			maintenance("b").draining("two"),
			pod("first").on("one"),
			pod("daemon").on("two").daemonSet().skippedBy("a"),
		).expectTargeted("first", "daemon")
	})
	t.Run("R25: a pod that one of them wants to complete is left alone", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one", "two").plan(upTo(10)),
			maintenance("b").draining("one"),
			pod("job").on("one").completesFor("b"), pod("other").on("one"),
			pod("later").on("two").priority(20),
		).
			expectTargeted("other").
			expect(node("one").of("a").says("Evacuating (limited by b)").pods(1, 1, 0)).
			gone("other").expect(
			node("one").of("a").says("Waiting for pod default/job to complete (b)."),
			node("two").of("a").says("Waiting for node one (b)."),
			node("one").of("b").says("Waiting for pod default/job to complete."),
		)
	})
	t.Run("R25: a newcomer is fast-forwarded to the floor, and limits progress from then on", func(t *testing.T) {
		given(t,
			maintenance("old").draining("one").plan(upTo(10), upTo(20)),
			pod("middle").on("one").priority(15), pod("high").on("one").priority(30),
		).
			expectTargeted("middle").
			and(
				maintenance("new").draining("one", "two").plan(upTo(5), upTo(30)),
				pod("elsewhere").on("two").priority(5),
				pod("appears").on("one").priority(20),
			).
			expectTargeted("middle", "appears", "elsewhere").
			expect(node("one").of("new").targets(upTo(20)).says("Evacuating (fast-forwarded by older old)").fastForwarded("old")).
			gone("middle", "appears").expectTargeted("elsewhere").
			gone("elsewhere").expectTargeted("high")
	})
	t.Run("R25: what a maintenance has reached stays when it ends", func(t *testing.T) {
		given(t,
			maintenance("old").draining("one").plan(upTo(20)),
			maintenance("new").draining("one", "two").plan(upTo(5), upTo(30)).published("one", upTo(20)).published("two", upTo(5)),
			pod("middle").on("one").priority(15).evacuating(), pod("elsewhere").on("two").priority(5),
		).
			without("old").
			and(pod("appears").on("one").priority(20), pod("beyond").on("one").priority(21)).
			expectTargeted("middle", "elsewhere", "appears").
			expect(node("one").of("new").says("Evacuating").fastForwarded())
	})
	t.Run("R25: a newcomer doesn't take its own later orders back from what is published", func(t *testing.T) {
		given(t,
			maintenance("old").draining("one", "two").plan(upTo(10)).published("one", upTo(10)).published("two", upTo(10)),
			maintenance("new").draining("one", "three"),
			pod("p").on("one").ordered(3, "new"), pod("q").on("three"),
		).expectTargeted("p", "q")
	})
	t.Run("R25: rows don't let a pod go that has a later order for one of those who published them", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one"),
			maintenance("b").draining("one", "two"),
			pod("x").on("one"), pod("y").on("one").ordered(1, "b"),
			pod("z").on("two"),
		).
			expectTargeted("x", "z").
			expectTargeted("x", "z"). // the rows are published now
			gone("x").expectTargeted("z").
			gone("z").expectTargeted("y")
	})
}

// contradiction is two maintenances of which each wants the other's first pod to go last.
func contradiction(firstSince, secondSince int) []thing {
	return []thing{
		maintenance("a").draining("one").since(firstSince),
		maintenance("b").draining("one").since(secondSince),
		pod("x").on("one").ordered(1, "b"),
		pod("y").on("one").ordered(1, "a"),
	}
}

func TestContradictionsNeverDeadlock(t *testing.T) {
	t.Run("R25: the current step of the oldest goes first", func(t *testing.T) {
		given(t, contradiction(1, 2)...).
			expectTargeted("x").
			expect(
				node("one").of("a").says("Evacuating"),
				node("one").of("b").says("Evacuating (fast-forwarded by older a)").fastForwarded("a"),
			).
			gone("x").expectTargeted("y")
		given(t, contradiction(2, 1)...).expectTargeted("y")
	})
	t.Run("R25: equally old ones go by creation, then by name", func(t *testing.T) {
		given(t, contradiction(1, 1)...).expectTargeted("x")
		given(t,
			maintenance("a").draining("one").since(1).created(2),
			maintenance("b").draining("one").since(1).created(1),
			pod("x").on("one").ordered(1, "b"),
			pod("y").on("one").ordered(1, "a"),
		).expectTargeted("y")
	})
	t.Run("R25: plans that contradict by selector", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10).app("x"), upTo(10).app("y")),
			maintenance("b").draining("one").plan(upTo(10).app("y"), upTo(10).app("x")),
			pod("x").on("one").app("x"), pod("y").on("one").app("y"),
		).
			expectTargeted("x").
			gone("x").expectTargeted("y")
	})
	t.Run("R25: three that wait for one another in a circle, over three nodes", func(t *testing.T) {
		given(t,
			maintenance("c").draining("three", "one"),
			maintenance("a").draining("one", "two").since(5000),
			maintenance("b").draining("two", "three").since(5001),
			pod("ca").on("one").ordered(1, "a"),
			pod("ab").on("two").ordered(1, "b"),
			pod("bc").on("three").ordered(1, "c"),
		).
			expectTargeted("ca").
			expect(
				node("two").of("a").says("Waiting for node one (c)."),
				node("three").of("b").says("Waiting for node one (c)."),
				node("three").of("c").says("Waiting for node one."),
				node("one").of("a").says("Evacuating (fast-forwarded by older c)"),
			).
			gone("ca").expectTargeted("bc").
			gone("bc").expectTargeted("ab")
	})
	t.Run("R25: pods that evacuate elsewhere don't keep a contradiction alive", func(t *testing.T) {
		things := append(contradiction(1, 2),
			maintenance("c").draining("one", "two"), pod("slow").on("two"))
		given(t, things...).
			change("x", func(p *podBuilder) { p.skippedBy("c") }).
			change("y", func(p *podBuilder) { p.skippedBy("c") }).
			expectTargeted("slow", "x")
	})
	t.Run("R25: who is not part of the circle keeps its say", func(t *testing.T) {
		given(t,
			maintenance("oldest").draining("one", "two").since(0),
			maintenance("a").draining("two").since(1),
			maintenance("b").draining("two").since(2),
			pod("first").on("one"),
			pod("x").on("two").ordered(1, "b", "oldest"),
			pod("y").on("two").ordered(1, "a", "oldest"),
		).
			expectTargeted("first").
			gone("first").expectTargeted("x").
			gone("x").expectTargeted("y")
	})
	t.Run("R25: an oldest that only waits for a circle has no step brought forward", func(t *testing.T) {
		things := append(contradiction(1, 2),
			maintenance("oldest").draining("one").since(0), pod("z").on("one").ordered(1, "a", "b"))
		given(t, things...).
			change("x", func(p *podBuilder) { p.skippedBy("oldest") }).
			change("y", func(p *podBuilder) { p.skippedBy("oldest") }).
			expectTargeted("x").
			gone("x").expectTargeted("y").
			gone("y").expectTargeted("z")
	})
	t.Run("R25: a pod that is to complete doesn't keep a contradiction alive", func(t *testing.T) {
		things := append(contradiction(1, 2), pod("job").on("one").completesFor("a", "b"))
		given(t, things...).
			expectTargeted("x").
			gone("x").expectTargeted("y"). // b still stands at its order 0, with y
			gone("y").expect(node("one").of("a").says("Waiting for pod default/job to complete."))
	})
	t.Run("R25: a pod that is to complete is no contradiction, and is waited for", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one"), maintenance("b").draining("one"),
			pod("job").on("one").completesFor("b"), pod("next").on("one").ordered(1, "a", "b"),
		).
			expectTargeted().
			change("job", func(p *podBuilder) { p.finished() }).expectTargeted("next")
	})
}

func TestRows(t *testing.T) {
	const max = everyPriority
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
			maintenance("m").draining("one").plan(upTo(10), upTo(max)),
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
	t.Run("R26: a newcomer shows what it is fast-forwarded to, with its own selectors", func(t *testing.T) {
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
	t.Run("R26: maintenances that contradict from the start have reached nothing together", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10).app("x"), upTo(10).app("y")),
			maintenance("b").draining("one").plan(upTo(10).app("y"), upTo(10).app("x")),
			pod("x").on("one").app("x"), pod("y").on("one").app("y"),
		).expect(node("one").of("a").targets(), node("one").of("b").targets())
	})
	t.Run("R26: a maintenance with nothing to drain shows its first step, and keeps what it had reached", func(t *testing.T) {
		given(t, maintenance("m").draining("one").plan(upTo(10), upTo(20))).
			expect(node("one").of("m").targets(upTo(10)).says("Drained")).
			and(pod("p").on("one").priority(20)).expect(node("one").of("m").targets(upTo(20))).
			gone("p").expect(node("one").of("m").targets(upTo(20)).says("Drained")).
			and(pod("q").on("one").daemonSet()).
			expect(node("one").of("m").targets(upTo(max), upTo(1000000000).daemonSets()))
	})
	t.Run("R26: a maintenance that nothing holds back doesn't limit the rows", func(t *testing.T) {
		given(t,
			maintenance("done").draining("one").plan(upTo(10)),
			maintenance("m").draining("one").plan(upTo(20)),
			pod("p").on("one").priority(20).skippedBy("done"),
		).expect(
			node("one").of("m").targets(upTo(20)),
			node("one").of("done").targets(upTo(20)).says("Drained"),
		)
	})
	t.Run("R26: no more rows than a status can hold", func(t *testing.T) {
		m := maintenance("new").draining("one")
		for i := range int32(300) {
			m.published("one", append(published(m), upTo(i).app(string(rune('A'+i))))...)
		}
		s := given(t, m, pod("p").on("one")).decide()
		rows := s.decision.Maintenances["new"].Nodes["one"].Targets
		if len(rows) > 192 {
			t.Errorf("%d rows", len(rows))
		}
		if !plan.Covers(rows, plan.Pod{}, 0) {
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

func TestMessages(t *testing.T) {
	t.Run("R27: Evacuating", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one")).
			expect(node("one").of("m").says("Evacuating")).
			expectBlocking("m", "Evacuating node one.")
	})
	t.Run("R28: limited by several, by name", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(30)),
			maintenance("b").draining("one").plan(upTo(20)),
			maintenance("a").draining("one").plan(upTo(10)),
			maintenance("unconcerned").draining("one").plan(upTo(40)),
			pod("low").on("one").priority(10), pod("high").on("one").priority(25),
		).expect(node("one").of("m").says("Evacuating (limited by a, b)"))
	})
	t.Run("R28: not limited where nothing is held back", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(30)),
			maintenance("a").draining("one").plan(upTo(10)),
			pod("low").on("one").priority(10), pod("high").on("one").priority(35),
		).expect(node("one").of("m").says("Evacuating"))
	})
	t.Run("R29: fast-forwarded by the least powerful of the older ones, never by a younger one", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(50)).published("one", upTo(20)),
			maintenance("b").draining("one").plan(upTo(20), upTo(50)).published("one", upTo(20)),
			maintenance("m").draining("one", "two").plan(upTo(10)),
			maintenance("younger").draining("one").plan(upTo(20), upTo(50)),
			pod("p").on("one").priority(20), pod("q").on("one").priority(40), pod("r").on("two"),
		).expect(
			node("one").of("m").says("Evacuating (fast-forwarded by older b)").fastForwarded("b"),
			node("one").of("younger").says("Evacuating").fastForwarded(),
		)
	})
	t.Run("R30: the first node by name that evacuates", func(t *testing.T) {
		given(t,
			maintenance("m").draining("c", "b", "a").plan(upTo(10)),
			pod("high").on("a").priority(20), pod("low-b").on("b"), pod("low-c").on("c"),
		).
			expect(node("a").of("m").says("Waiting for node b.")).
			expectBlocking("m", "Evacuating node b and 1 more.")
	})
	t.Run("R31: the root blocker is followed through maintenances", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one", "two").plan(upTo(10)),
			maintenance("b").draining("two", "three").plan(upTo(20)),
			maintenance("c").draining("three", "four").plan(upTo(30)),
			pod("root").on("one").priority(10),
			pod("p").on("two").priority(15), pod("q").on("three").priority(25), pod("r").on("four").priority(35),
		).expect(
			node("two").of("a").says("Waiting for node one."),
			node("two").of("b").says("Waiting for node one (a)."),
			node("three").of("b").says("Waiting for node one (a)."),
			node("three").of("c").says("Waiting for node one (a)."),
			node("four").of("c").says("Waiting for node one (a)."),
		).expectBlocking("c", "Waiting for node one (a).")
	})
	t.Run("R31: a node that is held back by another maintenance on the same node names that one", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10)),
			maintenance("b").draining("one").plan(upTo(20)),
			pod("low").on("one").skippedBy("b"), pod("high").on("one").priority(15),
		).expect(node("one").of("b").says("Waiting for node one (a)."))
	})
	t.Run("R31: a pod that may not be touched isn't what a node waits for before its turn", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10)),
			maintenance("other").draining("two"),
			pod("low").on("one"), pod("job").on("two").priority(20).completesFor("other"),
		).
			expect(node("two").of("m").says("Waiting for node one.")).
			gone("low").expect(node("two").of("m").says("Waiting for pod default/job to complete (other)."))
	})
	t.Run("R31: a pod that is to complete is all that a node waits for when it has no other", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10)),
			pod("low").on("one"), pod("job").on("two").priority(20).completesFor("m"),
		).expect(node("two").of("m").says("Waiting for pod default/job to complete."))
	})
	t.Run("R31: names that don't fit are counted", func(t *testing.T) {
		long := strings.Repeat("x", 240)
		things := []thing{maintenance("m").draining(long).plan(upTo(30)), pod("low").on(long), pod("high").on(long).priority(20)}
		for i := range 9 {
			things = append(things, maintenance(fmt.Sprint(i, long)).draining(long).plan(upTo(10)))
		}
		s := given(t, things...).expect(node(long).of("m").says(
			fmt.Sprintf("Evacuating (limited by 0%s, 1%s, 2%s and 6 more)", long, long, long)))
		s.change("low", func(p *podBuilder) { p.skippedBy("m") }).act().decide()
		if m := s.decision.Maintenances["m"]; len(m.Blocking) > 512 || len(m.Nodes[long].Message) > 1024 {
			t.Errorf("%d: %s\n%d: %s", len(m.Blocking), m.Blocking, len(m.Nodes[long].Message), m.Nodes[long].Message)
		}
	})
	t.Run("R32: Drained", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two"),
			pod("p").on("one").skippedBy("m"), pod("q").on("two"),
		).
			expect(node("one").of("m").says("Drained"), node("two").of("m").says("Evacuating")).
			gone("q").expectBlocking("m", "")
	})
}

func TestStatus(t *testing.T) {
	t.Run("R34: pending, evacuating and skipped are live pods", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10)),
			pods("going", 2).on("one"), pods("waits", 3).on("one").priority(20),
			pods("skipped", 4).on("one").skippedBy("m"), pods("finished", 5).on("one").finished(),
			pods("completes", 6).on("one").priority(20).completesFor("m"),
			pods("undecided", 7).on("one").priority(20).undecidedFor("m"),
			pods("elsewhere", 8).on("two"),
		).expect(node("one").of("m").pods(10, 2, 4))
	})
	for name, last := range map[string]*podBuilder{
		"R35: a pod that must go holds Drained back":         pod("last").on("two"),
		"R35: a pod that is to complete holds Drained back":  pod("last").on("two").completesFor("m"),
		"R35: a pod that is undecided holds Drained back":    pod("last").on("two").undecidedFor("m"),
		"R35: a static pod that can go holds Drained back":   pod("last").on("two").static(),
		"R35: a DaemonSet pod that goes holds Drained back":  pod("last").on("two").daemonSet(),
		"R35: a pod of a type not known holds Drained back":  {group: "last", count: 1, Pod: plan.Pod{Node: "two", Type: "New"}},
		"R35: an evacuating pod holds Drained back":          pod("last").on("two").evacuating(),
		"R35: a pod of the highest priority holds it back":   pod("last").on("two").priority(everyPriority),
		"R35: a pod of a negative priority holds it back":    pod("last").on("two").priority(-1),
		"R35: a pod of the last of the orders holds it back": pod("last").on("two").ordered(everyPriority, "m"),
	} {
		t.Run(name, func(t *testing.T) {
			given(t, maintenance("m").draining("one", "two"), last).
				expectDrained("m", false).
				gone("last").expectDrained("m", true)
		})
	}
	t.Run("R35: no nodes, not drained", func(t *testing.T) {
		given(t, maintenance("m").draining()).
			expectDrained("m", false).
			expectBlocking("m", "No Node is selected.")
	})
	t.Run("R36: every selected node is covered once", func(t *testing.T) {
		s := given(t, maintenance("m").draining("two", "one", "two")).decide()
		if nodes := s.decision.Maintenances["m"].Nodes; len(nodes) != 2 {
			t.Errorf("nodes: %v", nodes)
		}
	})
	t.Run("R41: a static pod without an evacuator is skipped, even when it has an Evacuation", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"),
			pod("p").on("one").staticWithoutEvacuator(),
			pod("q").on("one").staticWithoutEvacuator().evacuating(),
			pod("r").on("one").staticWithoutEvacuator().undecidedFor("m"),
		).
			expectTargeted().
			expect(node("one").of("m").pods(0, 0, 3).says("Drained")).
			expectDrained("m", true)
	})
	t.Run("R41: a static pod with an evacuator goes last", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"),
			pod("static").on("one").static(), pod("daemon").on("one").daemonSet().priority(everyPriority),
		).
			expectTargeted("daemon").
			gone("daemon").expectTargeted("static")
	})
}

func TestInputOfUsers(t *testing.T) {
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}
	t.Run("a selector that can't be parsed selects nothing", func(t *testing.T) {
		m := maintenance("m").draining("one").plan(upTo(5), upTo(20))
		m.Plan[0].PodSelector = broken
		given(t, m, pod("p").on("one"), pod("q").on("one").priority(20)).expectTargeted("p", "q")
	})
	t.Run("a row that can't be parsed covers nothing", func(t *testing.T) {
		row := upTo(everyPriority)
		row.PodSelector = broken
		given(t,
			maintenance("m").draining("one").plan(upTo(5)).published("one", row),
			pod("p").on("one"), pod("q").on("one").priority(20),
		).expectTargeted("p")
	})
	t.Run("a pod without a verdict is undecided", func(t *testing.T) {
		d := plan.Decide(plan.Observation{
			Maintenances: []plan.Maintenance{{Name: "m", Nodes: []string{"one"}}},
			Pods: []plan.Pod{
				{UID: "1", Node: "one"},
				{UID: "2", Node: "one", Verdicts: map[string]plan.Verdict{"m": {}}},
				{UID: "3", Node: "one", Verdicts: map[string]plan.Verdict{"m": {Behavior: "New"}}},
			},
		})
		if len(d.Targets) != 0 || d.Maintenances["m"].Drained {
			t.Errorf("decided: %v", d)
		}
	})
	t.Run("pods of other nodes are nobody's business", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("two").evacuating(), pod("q").on("")).
			expectTargeted().expectDrained("m", true)
	})
	t.Run("nothing observed, nothing decided", func(t *testing.T) {
		if d := plan.Decide(plan.Observation{}); len(d.Targets) != 0 || len(d.Maintenances) != 0 {
			t.Errorf("decided: %v", d)
		}
	})
}

func TestComponent(t *testing.T) {
	all := []plan.Maintenance{
		{Name: "far", Nodes: []string{"three", "four"}},
		{Name: "near", Nodes: []string{"two", "three"}},
		{Name: "other", Nodes: []string{"five"}},
		{Name: "a", Nodes: []string{"one", "two"}},
		{Name: "empty"},
	}
	for of, expected := range map[string]string{
		"a": "far near a ", "far": "far near a ", "other": "other ", "empty": "empty ", "unknown": "",
	} {
		var got string
		for _, m := range plan.Component(of, all) {
			got += m.Name + " "
		}
		if got != expected {
			t.Errorf("component of %s: %q, expected %q", of, got, expected)
		}
	}
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
			if got := plan.Covers(rows, test.pod.Pod, test.order); got != test.expected {
				t.Errorf("covered: %v", got)
			}
		})
	}
}
