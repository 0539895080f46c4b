package plan_test

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

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
		"R35: a Pod that drains keeps the Node from being drained": pod("last").on("two"),
		"R35: a pod that is to complete holds Drained back":        pod("last").on("two").completesFor("m"),
		"R35: a pod that is undecided holds Drained back":          pod("last").on("two").undecidedFor("m"),
		"R35: a static pod that can go holds Drained back":         pod("last").on("two").static(),
		"R35: a DaemonSet pod that goes holds Drained back":        pod("last").on("two").daemonSet(),
		"R35: a pod of a type not known holds Drained back":        {group: "last", count: 1, Pod: plan.Pod{Node: "two", Type: "New"}},
		"R35: an evacuating pod holds Drained back":                pod("last").on("two").evacuating(),
		"R35: a pod of the highest priority holds it back":         pod("last").on("two").priority(everyPriority),
		"R35: a pod of a negative priority holds it back":          pod("last").on("two").priority(-1),
		"R35: a pod of the last of the orders holds it back":       pod("last").on("two").ordered(everyPriority, "m"),
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
	t.Run("R40: skips only Pods that their DaemonSet would replace immediately", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"),
			pod("tolerant").on("one").comingBack(), pod("daemon").on("one").daemonSet(),
		).
			expectTargeted("daemon").
			expect(node("one").of("m").pods(0, 1, 1)).
			gone("daemon").expectDrained("m", true)
	})
	t.Run("R41: evacuates a static Pod with an evacuator last", func(t *testing.T) {
		given(t,
			maintenance("m").draining("one"),
			pod("static").on("one").static(), pod("daemon").on("one").daemonSet().priority(everyPriority),
		).
			expectTargeted("daemon").
			gone("daemon").expectTargeted("static")
	})
}
