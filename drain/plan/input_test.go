package plan_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func TestInputOfUsers(t *testing.T) {
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}
	t.Run("an invalid selector selects nothing", func(t *testing.T) {
		m := maintenance("m").draining("one").plan(upTo(5), upTo(20))
		m.Plan[0].PodSelector = specOf(broken)
		given(t, m, pod("p").on("one"), pod("q").on("one").priority(20)).expectTargeted("p", "q")
	})
	t.Run("a plan that is longer than the schema admits", func(t *testing.T) {
		m := maintenance("m").draining("one").published("one", upTo(5).app("x"), upTo(6).app("y"))
		for i := range 250 {
			m.plan(upTo(10).app(fmt.Sprint(i)))
		}
		given(t, m, pod("p").on("one")).expectTargeted("p")
	})
	t.Run("an invalid row covers nothing", func(t *testing.T) {
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
	t.Run("ignores Pods of other Nodes", func(t *testing.T) {
		given(t, maintenance("m").draining("one"), pod("p").on("two").evacuating(), pod("q").on("")).
			expectTargeted().expectDrained("m", true)
	})
	t.Run("nothing observed, nothing decided", func(t *testing.T) {
		if d := plan.Decide(plan.Observation{}); len(d.Targets) != 0 || len(d.Maintenances) != 0 {
			t.Errorf("decided: %v", d)
		}
	})
}
