package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMessages(t *testing.T) {
	t.Run("R27: Evacuating", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("one")).
			expect(node("one").of("m").says("Evacuating")).
			expectBlocking("m", "Waiting for Pods with drain order 0 on Node one to terminate.")
	})
	t.Run("R28: names the maintenances that limit it, sorted by name", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(30)),
			maintenance("b").draining("one").plan(upTo(20)),
			maintenance("a").draining("one").plan(upTo(10)),
			maintenance("unconcerned").draining("one").plan(upTo(40)),
			pod("low").on("one").priority(10), pod("high").on("one").priority(25),
		).expect(node("one").of("m").says("Evacuating (limited by a, b)"))
	})
	t.Run("R28: is not limited if no Pod is held back", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one").plan(upTo(30)),
			maintenance("a").draining("one").plan(upTo(10)),
			pod("low").on("one").priority(10), pod("high").on("one").priority(35),
		).expect(node("one").of("m").says("Evacuating"))
	})
	t.Run("R29: names the least powerful older maintenance, never a younger one", func(t *testing.T) {
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
	t.Run("R30: names the first evacuating Node by name", func(t *testing.T) {
		given(t,
			maintenance("m").draining("c", "b", "a").plan(upTo(10)),
			pod("high").on("a").priority(20), pod("low-b").on("b"), pod("low-c").on("c"),
		).
			expect(node("a").of("m").says("Waiting for node b.")).
			expectBlocking("m", "Waiting for Pods with drain order 0 on Node b and 1 more Node to terminate.")
	})
	t.Run("R31: follows the root blocker through maintenances", func(t *testing.T) {
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
	t.Run("R31: names another maintenance that holds back the same Node", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10)),
			maintenance("b").draining("one").plan(upTo(20)),
			pod("low").on("one").skippedBy("b"), pod("high").on("one").priority(15),
		).expect(node("one").of("b").says("Waiting for node one (a)."))
	})
	t.Run("R31: does not name a vetoed Pod beyond the current step", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10)),
			maintenance("other").draining("two"),
			pod("low").on("one"), pod("job").on("two").priority(20).completesFor("other"),
		).
			expect(node("two").of("m").says("Waiting for node one.")).
			gone("low").expect(node("two").of("m").says("Waiting for Pod default/job to complete (other)."))
	})
	t.Run("R31: names a Pod that must complete if the Node has no other Pod", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one", "two").plan(upTo(10)),
			pod("low").on("one"), pod("job").on("two").priority(20).completesFor("m"),
		).expect(node("two").of("m").says("Waiting for Pod default/job to complete."))
	})
	t.Run("R31: names the blocker of the oldest maintenance that holds back the Node", func(t *testing.T) {
		given(t,
			maintenance("b").draining("shared", "two").plan(upTo(10)),
			maintenance("a").draining("shared", "one").plan(upTo(10)),
			maintenance("m").draining("shared").plan(upTo(30)),
			pod("p").on("shared").priority(20), pod("root-b").on("two"), pod("root-a").on("one"),
		).expect(node("shared").of("m").says("Waiting for node two (b)."))
	})
	t.Run("R31: names no other maintenance for a Pod that must complete in this one, too", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one"), maintenance("b").draining("one", "two"),
			pod("job").on("one").completesFor("a", "b"), pod("later").on("two").daemonSet(),
		).expect(
			node("one").of("a").says("Waiting for Pod default/job to complete."),
			node("one").of("b").says("Waiting for Pod default/job to complete."),
			node("two").of("b").says("Waiting for node one."),
		)
	})
	t.Run("R31: counts the names that do not fit", func(t *testing.T) {
		long := strings.Repeat("x", 252)
		things := []thing{maintenance("m").draining(long).plan(upTo(30)), pod("low").on(long), pod("high").on(long).priority(20)}
		for i := range 9 {
			things = append(things, maintenance(fmt.Sprint(i, long)).draining(long).plan(upTo(10)))
		}
		s := given(t, things...).expect(node(long).of("m").says(
			fmt.Sprintf("Evacuating (limited by 0%s, 1%s, 2%s and 6 more)", long, long, long)))
		s.change("low", func(p *podBuilder) { p.skippedBy("m") }).act().decide()
		if m := s.decision.Maintenances["m"]; utf8.RuneCountInString(m.Blocking) > 512 || utf8.RuneCountInString(m.Nodes[long].Message) > 1024 {
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
