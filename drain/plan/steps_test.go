package plan_test

import (
	"testing"
)

func TestSteps(t *testing.T) {
	t.Run("R23: starts the next step when no Node has a live Pod of the previous steps", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20)),
			pod("low-1").on("one").priority(10), pod("high-1").on("one").priority(20),
			pod("low-2").on("two").priority(3), pod("high-2").on("two").priority(11),
		).
			expectTargeted("low-1", "low-2").
			gone("low-1").expectTargeted("low-2").
			gone("low-2").expectTargeted("high-1", "high-2")
	})
	t.Run("R23: skips steps without Pods", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(20), upTo(30)),
			pod("p").on("one").priority(25),
		).
			expectTargeted("p").
			expect(node("one").of("m").targets(upTo(30)))
	})
	t.Run("R23: evacuates one Pod type after the other, regardless of priorities", func(t *testing.T) {
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
	t.Run("R23: evacuates Pods with lower drain order first, before priorities", func(t *testing.T) {
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
	t.Run("R23: assigns a Pod to the first entry that selects it", func(t *testing.T) {
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
	t.Run("R23: waits at order 0 for a Pod that must complete, and never targets it", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10)),
			pod("job").on("one").priority(10).completesFor("m"),
			pod("low").on("two").priority(10), pod("high").on("two").priority(20),
		).
			expectTargeted("low").
			gone("low").expectTargeted().
			expect(
				node("one").of("m").says("Waiting for Pod default/job to complete.").pods(0, 0, 0),
				node("two").of("m").says("Waiting for node one."),
			).
			expectBlocking("m", "Waiting for Pod default/job on Node one to complete.").
			change("job", func(p *podBuilder) { p.finished() }).expectTargeted("high").
			gone("high").expectDrained("m", true)
	})
	t.Run("R23: does not wait for a finished Pod", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10)),
			pod("done").on("one").finished(),
			pod("high").on("one").priority(20),
		).
			expectTargeted("high").
			gone("high").expectDrained("m", true)
	})
	t.Run("R23: waits for an undecided Pod, and does not target it", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10)),
			pod("low").on("one").undecidedFor("m"), pod("high").on("one").priority(20),
		).
			expectTargeted().
			expect(node("one").of("m").pods(2, 0, 0).
				says("Waiting for Pod default/low: the drain rules cannot be evaluated.")).
			expectBlocking("m", "Waiting for Pod default/low on Node one: the drain rules cannot be evaluated.").
			expectDrained("m", false).
			change("low", func(p *podBuilder) { p.drainsFor("m") }).expectTargeted("low").
			gone("low").expectTargeted("high")
	})
	t.Run("R21: targets a Pod that appears at an earlier step immediately", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20)),
			pod("middle").on("one").priority(20), pod("high").on("one").priority(30),
		).
			expectTargeted("middle").
			and(pod("late").on("two").priority(5)).expectTargeted("middle", "late").
			gone("middle").expectTargeted("late").
			gone("late").expectTargeted("high")
	})
	t.Run("R15: a Node that joins starts at the current step, a Node that leaves has no targets", func(t *testing.T) {
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
