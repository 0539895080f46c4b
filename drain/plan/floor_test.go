package plan_test

import (
	"testing"
)

func TestProgressNeverBacktracks(t *testing.T) {
	t.Run("R24: targets a Pod under the published rows, regardless of the cursor", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10), upTo(20)).
				published("one", upTo(20)).published("two", upTo(20)),
			pod("low").on("one").priority(10),
			pod("covered").on("two").priority(20), pod("beyond").on("two").priority(21),
		).
			expectTargeted("low", "covered").
			expect(node("two").of("m").targets(upTo(20)).says("Evacuating"))
	})
	t.Run("R24: keeps the Evacuation of a Pod even if all rows are lost", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(20)),
			pod("low").on("one").priority(10),
			pod("high").on("one").priority(20).evacuating(),
			pod("waits").on("one").priority(20),
		).expectTargeted("low", "high")
	})
	t.Run("R24: never lowers published rows", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(10), upTo(20)).published("one", upTo(15), upTo(3).daemonSets()),
			pod("low").on("one").priority(10),
		).expect(node("one").of("m").targets(upTo(15), upTo(3).daemonSets()))
	})
	t.Run("R24: applies the status of one of two maintenances to both", func(t *testing.T) {
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
	t.Run("E62: keeps the target whose verdict is not known because an object has not been read yet", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"), maintenance("other").draining("one"),
			pod("p").on("one"), pod("q").on("one"),
		).
			expectTargeted("p", "q").
			change("p", func(p *podBuilder) { p.unreadFor("m") }).expectTargeted("p", "q").
			change("p", func(p *podBuilder) { p.unreadFor("m", "other") }).expectTargeted("p", "q").expectDrained("m", false).
			change("p", func(p *podBuilder) { p.skippedBy("m", "other") }).expectTargeted("q")
	})
	t.Run("E62: creates no target whose verdict is not known because an object has not been read yet", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one").unreadFor("m"), pod("q").on("one")).
			expectTargeted("q").expectDrained("m", false).
			change("p", func(p *podBuilder) { p.drainsFor("m") }).expectTargeted("p", "q")
	})
	t.Run("E62: another maintenance withdraws the target", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"), maintenance("other").draining("one"),
			pod("p").on("one"),
		).
			expectTargeted("p").
			change("p", func(p *podBuilder) { p.unreadFor("m").completesFor("other") }).expectTargeted()
	})
	t.Run("R24: keeps a target whose drain order increases", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one"), pod("q").on("one")).
			expectTargeted("p", "q").
			change("p", func(p *podBuilder) { p.ordered(5, "m") }).expectTargeted("p", "q")
	})
	t.Run("R24: keeps the Evacuation of a Pod that finishes", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one")).
			expectTargeted("p").
			change("p", func(p *podBuilder) { p.finished() }).expectTargeted("p").
			expect(node("one").of("m").says("Drained").pods(0, 0, 0))
	})
}
