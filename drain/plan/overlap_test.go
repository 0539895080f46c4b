package plan_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func TestOverlappingMaintenances(t *testing.T) {
	t.Run("R25: the least powerful maintenance limits the Node", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one").plan(upTo(10), upTo(30)),
			maintenance("b").draining("one").plan(upTo(20), upTo(30)),
			pod("low").on("one").priority(10), pod("middle").on("one").priority(20),
		).
			expectTargeted("low").
			gone("low").expectTargeted("middle")
	})
	t.Run("R25: a maintenance that skips a Pod does not limit it", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one", "two"),
			maintenance("b").draining("two"),
			pod("first").on("one"),
			pod("daemon").on("two").daemonSet().skippedBy("a"),
		).expectTargeted("first", "daemon")
	})
	t.Run("R25: does not evacuate a Pod that must complete in one maintenance", func(t *testing.T) {
		given(t,
			maintenance("a").draining("one", "two").plan(upTo(10)),
			maintenance("b").draining("one"),
			pod("job").on("one").completesFor("b"), pod("other").on("one"),
			pod("later").on("two").priority(20),
		).
			expectTargeted("other").
			expect(node("one").of("a").says("Evacuating (limited by b)").pods(1, 1, 0)).
			gone("other").expect(
			node("one").of("a").says("Waiting for Pod default/job to complete (b)."),
			node("two").of("a").says("Waiting for node one (b)."),
			node("one").of("b").says("Waiting for Pod default/job to complete."),
		)
	})
	t.Run("R25: fast-forwards a new maintenance to the floor, and lets it limit progress afterwards", func(t *testing.T) {
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
	t.Run("R25: keeps what a maintenance has reached when it ends", func(t *testing.T) {
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
	t.Run("R25: a new maintenance with later orders does not lower published rows", func(t *testing.T) {
		given(t,
			maintenance("old").draining("one", "two").plan(upTo(10)).published("one", upTo(10)).published("two", upTo(10)),
			maintenance("new").draining("one", "three"),
			pod("p").on("one").ordered(3, "new"), pod("q").on("three"),
		).expectTargeted("p", "q")
	})
	t.Run("R25: does not target a Pod under the rows that has a later order in a maintenance that published them", func(t *testing.T) {
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

func TestSuspendedMaintenances(t *testing.T) {
	t.Run("E58: evacuates no Pod that only a suspended maintenance drains", func(t *testing.T) {
		given(t,
			maintenance("paused").draining("one").suspended(),
			maintenance("other").draining("one"),
			pod("db").on("one").skippedBy("other"), pod("web").on("one"),
		).expectTargeted("web")
	})
	t.Run("E58: does not move the order of a suspended maintenance forward", func(t *testing.T) {
		given(t,
			maintenance("paused").draining("one").suspended(),
			maintenance("other").draining("one"),
			pod("web").on("one"), pod("db").on("one").ordered(10, "paused").skippedBy("other"),
		).
			expectTargeted("web").
			gone("web").expectTargeted()
	})
	t.Run("E58: a suspended maintenance holds back the Pods of others by its order", func(t *testing.T) {
		given(t,
			maintenance("paused").draining("one").suspended(),
			maintenance("other").draining("one"),
			pod("db").on("one").skippedBy("other"), pod("web").on("one").ordered(10, "paused"),
		).expectTargeted()
	})
	t.Run("E58: a Pod that must complete in a suspended maintenance is not evacuated", func(t *testing.T) {
		given(t,
			maintenance("paused").draining("one").suspended(),
			maintenance("other").draining("one"),
			pod("job").on("one").completesFor("paused"),
		).expectTargeted()
	})
	t.Run("E58: keeps the Evacuations that only a suspended maintenance continues", func(t *testing.T) {
		paused := plan.Maintenance{Name: "paused", Nodes: []string{"one"}, Suspended: true}
		other := plan.Maintenance{Name: "other", Nodes: []string{"one"}}
		drains, skips := plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}, plan.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}
		on := func(name string, evacuating bool, pausedSays, otherSays plan.Verdict) plan.Pod {
			return plan.Pod{
				UID: types.UID(name), Name: name, Node: "one", Type: v1alpha1.PodTypeDefault, Evacuating: evacuating,
				Verdicts: map[string]plan.Verdict{"paused": pausedSays, "other": otherSays},
			}
		}
		decision := plan.Decide(plan.Observation{Maintenances: []plan.Maintenance{paused, other}, Pods: []plan.Pod{
			on("continued", true, drains, skips), on("new", false, drains, skips), on("shared", true, drains, drains), on("skipped", true, skips, skips),
		}})
		if kept := sets.List(decision.Kept); !slices.Equal(kept, []types.UID{"continued"}) {
			t.Errorf("kept %v", kept)
		}
		if targets := sets.List(decision.Targets); !slices.Equal(targets, []types.UID{"shared"}) {
			t.Errorf("targets %v", targets)
		}
	})
}
