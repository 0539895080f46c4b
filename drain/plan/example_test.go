package plan_test

import (
	"fmt"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// Two maintenances share node one. The entry with the lowest priority is resolved first there.
func ExampleDecide() {
	drain := plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
	observed := plan.Observation{
		Maintenances: []plan.Maintenance{
			{Name: "a", Nodes: []string{"one", "two"}, Plan: []v1alpha1.DrainPlanEntry{{PodPriority: 5000}}},
			{Name: "b", Nodes: []string{"one", "three"}, Plan: []v1alpha1.DrainPlanEntry{{PodPriority: 10000}}},
		},
		Pods: []plan.Pod{
			{UID: "web", Node: "one", Priority: 5000, Verdicts: map[string]plan.Verdict{"a": drain, "b": drain}},
			{UID: "cache", Node: "one", Priority: 9000, Verdicts: map[string]plan.Verdict{"a": drain, "b": drain}},
			{UID: "db", Node: "three", Priority: 20000, Verdicts: map[string]plan.Verdict{"b": drain}},
		},
	}
	decided := plan.Decide(observed)

	fmt.Println(decided.Targets.UnsortedList())
	fmt.Println(decided.Maintenances["b"].Nodes["one"].Message)
	fmt.Println(decided.Maintenances["b"].Nodes["three"].Message)
	fmt.Println(decided.Maintenances["a"].Nodes["two"].Message)
	// Output:
	// [web]
	// Evacuating (limited by a)
	// Waiting for node one.
	// Drained
}
