package plan_test

import (
	"testing"
)

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
	t.Run("R25: evacuates the current step of the oldest maintenance first", func(t *testing.T) {
		given(t, contradiction(1, 2)...).
			expectTargeted("x").
			expect(
				node("one").of("a").says("Evacuating"),
				node("one").of("b").says("Evacuating (fast-forwarded by older a)").fastForwarded("a"),
			).
			gone("x").expectTargeted("y")
		given(t, contradiction(2, 1)...).expectTargeted("y")
	})
	t.Run("R25: orders equally old maintenances by creation, then by name", func(t *testing.T) {
		given(t, contradiction(1, 1)...).expectTargeted("x")
		given(t,
			maintenance("a").draining("one").since(1).created(2),
			maintenance("b").draining("one").since(1).created(1),
			pod("x").on("one").ordered(1, "b"),
			pod("y").on("one").ordered(1, "a"),
		).expectTargeted("y")
	})
	t.Run("R25: resolves plans that contradict by selector", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10).app("x"), upTo(10).app("y")),
			maintenance("b").draining("one").plan(upTo(10).app("y"), upTo(10).app("x")),
			pod("x").on("one").app("x"), pod("y").on("one").app("y"),
		).
			expectTargeted("x").
			gone("x").expectTargeted("y")
	})
	t.Run("R25: resolves a cycle of three maintenances over three Nodes", func(t *testing.T) {
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
	t.Run("R25: resolves a cycle while Pods evacuate elsewhere", func(t *testing.T) {
		things := append(contradiction(1, 2),
			maintenance("c").draining("one", "two"), pod("slow").on("two"))
		given(t, things...).
			change("x", func(p *podBuilder) { p.skippedBy("c") }).
			change("y", func(p *podBuilder) { p.skippedBy("c") }).
			expectTargeted("slow", "x")
	})
	t.Run("R25: respects maintenances outside the cycle", func(t *testing.T) {
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
	t.Run("R25: resolves each of two connected cycles", func(t *testing.T) {
		given(t, append(contradiction(1, 2),
			maintenance("c").draining("one", "two").since(3),
			maintenance("d").draining("two").since(4),
			pod("v").on("two").ordered(1, "d"),
			pod("w").on("two").ordered(1, "c"),
		)...).
			change("x", func(p *podBuilder) { p.ordered(2, "c") }).
			change("y", func(p *podBuilder) { p.skippedBy("c") }).
			expectTargeted("v"). // a is older, but c holds x back too
			gone("v").expectTargeted("w").
			gone("w").expectTargeted("x").
			gone("x").expectTargeted("y")
	})
	t.Run("R25: does not bring forward the step of an oldest maintenance that only waits for a cycle", func(t *testing.T) {
		things := append(contradiction(1, 2),
			maintenance("oldest").draining("one").since(0), pod("z").on("one").ordered(1, "a", "b"))
		given(t, things...).
			change("x", func(p *podBuilder) { p.skippedBy("oldest") }).
			change("y", func(p *podBuilder) { p.skippedBy("oldest") }).
			expectTargeted("x").
			gone("x").expectTargeted("y").
			gone("y").expectTargeted("z")
	})
	t.Run("R25: resolves a cycle with a Pod that must complete", func(t *testing.T) {
		things := append(contradiction(1, 2), pod("job").on("one").completesFor("a", "b"))
		given(t, things...).
			expectTargeted("x").
			gone("x").expectTargeted(). // no contradiction any more: a wants y after the job
			gone("job").expectTargeted("y")
	})
	t.Run("R25: waits for a Pod that must complete, which is not a cycle", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one"), maintenance("b").draining("one"),
			pod("job").on("one").completesFor("b"), pod("next").on("one").ordered(1, "a", "b"),
		).
			expectTargeted().
			change("job", func(p *podBuilder) { p.finished() }).expectTargeted("next")
	})
}
