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
	t.Run("R25: of two circles that touch, each one breaks by itself", func(t *testing.T) {
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
			gone("x").expectTargeted(). // no contradiction any more: a wants y after the job
			gone("job").expectTargeted("y")
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
