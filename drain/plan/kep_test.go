package plan_test

import (
	"math"
	"testing"
)

const everyPriority = math.MaxInt32

// TestKEP4212Example is KEP-4212's "Pod Selection and DrainTargets Example", state by state, with its numbers, and then the
// rest of the story.
func TestKEP4212Example(t *testing.T) {
	const a, b, c = "maintenance-a", "maintenance-b", "maintenance-c"
	s := given(t,
		maintenance(a).draining("one", "two").plan(upTo(5000), upTo(15000), upTo(3000).daemonSets()),
		maintenance(b).draining("one", "three").plan(upTo(10000), upTo(15000), upTo(4000).daemonSets()),
		pods("one-5000", 10).on("one").priority(5000),
		pods("one-10000", 30).on("one").priority(10000),
		pods("one-15000", 70).on("one").priority(15000),
		pods("two-5000", 7).on("two").priority(5000),
		pods("two-15000", 9).on("two").priority(15000),
		pods("two-higher", 21).on("two").priority(20000),
		pods("three-10000", 25).on("three").priority(10000),
		pods("three-15000", 45).on("three").priority(15000),
	)
	t.Log("two maintenances intersect on node one: the entry with the lowest priority is resolved first")
	s.expect(
		node("one").of(a).targets(upTo(5000)).pods(100, 10, 0).says("Evacuating"),
		node("two").of(a).targets(upTo(5000)).pods(30, 7, 0).says("Evacuating"),
		node("one").of(b).targets(upTo(5000)).pods(100, 10, 0).says("Evacuating (limited by maintenance-a)"),
		node("three").of(b).targets(upTo(10000)).pods(45, 25, 0).says("Evacuating"),
	)
	t.Log("if the node three is drained, then it has to wait for the node one")
	s.gone("three-10000").goneBut("one-5000", 5).expect(
		node("one").of(b).targets(upTo(5000)).pods(100, 5, 0).says("Evacuating (limited by maintenance-a)"),
		node("three").of(b).targets(upTo(10000)).pods(45, 0, 0).says("Waiting for node one."),
	)
	t.Log("if the node one is drained, we still have to wait for the maintenance-a to drain node two")
	s.gone("one-5000").goneBut("two-5000", 2).expect(
		node("one").of(a).targets(upTo(5000)).pods(100, 0, 0).says("Waiting for node two."),
		node("two").of(a).targets(upTo(5000)).pods(30, 2, 0).says("Evacuating"),
		node("one").of(b).targets(upTo(5000)).pods(100, 0, 0).says("Waiting for node two (maintenance-a)."),
		node("three").of(b).targets(upTo(10000)).pods(45, 0, 0).says("Waiting for node two (maintenance-a)."),
	)
	t.Log("once the node two drains, we can increment the drainTargets")
	s.gone("two-5000").expect(
		node("one").of(a).targets(upTo(10000)).pods(70, 30, 0).says("Evacuating (limited by maintenance-b)"),
		node("two").of(a).targets(upTo(15000)).pods(21, 9, 0).says("Evacuating"),
		node("one").of(b).targets(upTo(10000)).pods(70, 30, 0).says("Evacuating"),
		node("three").of(b).targets(upTo(10000)).pods(45, 0, 0).says("Waiting for node one."),
	)
	t.Log("an intersecting maintenance-c is fast-forwarded for node one regardless of its drainPlan")
	s.and(
		maintenance(c).draining("one", "four").plan(upTo(2000), upTo(15000)),
		pods("four-2000", 5).on("four").priority(2000),
		pods("four-15000", 20).on("four").priority(15000),
	).expect(
		node("one").of(c).targets(upTo(10000)).pods(70, 30, 0).
			says("Evacuating (fast-forwarded by older maintenance-b)").fastForwarded(b),
		node("four").of(c).targets(upTo(2000)).pods(20, 5, 0).says("Evacuating").fastForwarded(),
		node("one").of(a).targets(upTo(10000)).says("Evacuating (limited by maintenance-b, maintenance-c)"),
		node("one").of(b).targets(upTo(10000)).says("Evacuating"),
	)
	t.Log("from then on maintenance-c limits progress like any other")
	s.gone("one-10000", "two-15000").expect(
		node("one").of(a).targets(upTo(10000)).pods(70, 0, 0).says("Waiting for node four (maintenance-c)."),
		node("two").of(a).targets(upTo(15000)).pods(21, 0, 0).says("Waiting for node four (maintenance-c)."),
		node("one").of(b).targets(upTo(10000)).pods(70, 0, 0).says("Waiting for node four (maintenance-c)."),
		node("three").of(b).targets(upTo(15000)).pods(0, 45, 0).says("Evacuating"),
		node("one").of(c).targets(upTo(10000)).pods(70, 0, 0).says("Waiting for node four.").fastForwarded(),
		node("four").of(c).targets(upTo(2000)).pods(20, 5, 0).says("Evacuating"),
	)
	t.Log("all of them come to an end")
	s.gone("four-2000").expect(
		node("one").of(a).targets(upTo(15000)).pods(0, 70, 0).says("Evacuating"),
		node("one").of(b).targets(upTo(15000)).says("Evacuating"),
		node("one").of(c).targets(upTo(15000)).says("Evacuating"),
		node("two").of(a).pods(21, 0, 0).says("Waiting for node one."),
		node("four").of(c).targets(upTo(15000)).pods(0, 20, 0).says("Evacuating"),
	)
	s.gone("one-15000", "three-15000", "four-15000").expect(
		node("one").of(a).says("Drained"),
		node("two").of(a).targets(upTo(1000000000)).pods(0, 21, 0).says("Evacuating"),
		node("one").of(b).says("Drained"),
		node("three").of(b).says("Drained"),
		node("four").of(c).says("Drained"),
	)
	s.gone("two-higher").expectDrained(a, true).expectDrained(b, true).expectDrained(c, true)
}

// TestKEP4212PodTypesAndLabelSelectors is KEP-4212's "PodTypes and Label Selectors Progression", all its six states.
func TestKEP4212PodTypesAndLabelSelectors(t *testing.T) {
	given(t,
		maintenance("m").draining("five").plan(
			upTo(1000),
			upTo(2000).app("postgres"),
			upTo(everyPriority),
			upTo(1000).daemonSets(),
			upTo(everyPriority).daemonSets(),
			upTo(everyPriority).statics(),
		),
		pod("web").on("five").priority(1000),
		pod("postgres").on("five").priority(2000).app("postgres"),
		pod("critical").on("five").priority(everyPriority),
		pod("log").on("five").priority(1000).daemonSet(),
		pod("network").on("five").priority(everyPriority).daemonSet(),
		pod("kube-proxy").on("five").priority(everyPriority).static(),
	).expect(
		node("five").of("m").targets(upTo(1000), upTo(1000).app("postgres")).pods(5, 1, 0),
	).gone("web").expect(
		node("five").of("m").targets(upTo(1000), upTo(2000).app("postgres")).pods(4, 1, 0),
	).gone("postgres").expect(
		node("five").of("m").targets(upTo(everyPriority), upTo(everyPriority).app("postgres")).pods(3, 1, 0),
	).gone("critical").expect(
		node("five").of("m").targets(
			upTo(everyPriority), upTo(everyPriority).app("postgres"),
			upTo(1000).daemonSets(),
		).pods(2, 1, 0),
	).gone("log").expect(
		node("five").of("m").targets(
			upTo(everyPriority), upTo(everyPriority).app("postgres"),
			upTo(everyPriority).daemonSets(),
		).pods(1, 1, 0),
	).gone("network").expect(
		node("five").of("m").targets(
			upTo(everyPriority), upTo(everyPriority).app("postgres"),
			upTo(everyPriority).daemonSets(),
			upTo(everyPriority).statics(),
		).pods(0, 1, 0).says("Evacuating"),
	).gone("kube-proxy").expect(
		node("five").of("m").pods(0, 0, 0).says("Drained"),
	).expectDrained("m", true)
}
