package plan_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// FuzzDecide gives Decide whatever users can write: plans, selectors, rows of a status, labels. It must neither panic nor
// leave a drain with nothing to wait for.
func FuzzDecide(f *testing.F) {
	for _, seed := range []struct{ plan, published, labels string }{
		{`[]`, `[]`, `{}`},
		{`[{"podPriority":1000},{"podPriority":2000,"podSelector":{"matchLabels":{"app":"postgres"}}}]`,
			`[{"podType":"Default","podPriority":1000}]`, `{"app":"postgres"}`},
		{`[{"podType":"DaemonSet","podPriority":-1,"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":["a","b"]}]}}]`,
			`[{"podType":"DaemonSet","podPriority":5,"order":3,"podSelector":{"matchExpressions":[{"key":"app","operator":"Exists"}]}}]`,
			`{"app":"b"}`},
		{`[{"podPriority":7,"podSelector":{"matchExpressions":[{"key":"","operator":"Like","values":["x"]}]}}]`,
			`[{"podType":"Other","podPriority":7,"podSelector":{"matchLabels":{"not a key":"not a value!"}}}]`, `{"":""}`},
		{`[{"podType":"Static","podPriority":2147483647},{"podPriority":-2147483648,"podSelector":{}}]`,
			`[{"podPriority":-2147483648,"order":-2147483648}]`, `null`},
	} {
		f.Add([]byte(seed.plan), []byte(seed.published), []byte(seed.labels), int32(1500), int32(0))
	}
	f.Fuzz(func(t *testing.T, planJSON, publishedJSON, labelsJSON []byte, priority, order int32) {
		var (
			entries   []v1alpha1.DrainPlanEntry
			published []v1alpha1.DrainTarget
			labels    map[string]string
		)
		if json.Unmarshal(planJSON, &entries) != nil || json.Unmarshal(publishedJSON, &published) != nil ||
			json.Unmarshal(labelsJSON, &labels) != nil {
			return
		}
		if len(entries) > 64 { // what the schema admits
			entries = entries[:64]
		}
		drains := map[string]plan.Verdict{
			"a": {Behavior: v1alpha1.DrainBehaviorDrain, Order: order},
			"b": {Behavior: v1alpha1.DrainBehaviorDrain},
		}
		o := plan.Observation{Maintenances: []plan.Maintenance{
			{Name: "a", Plan: entries, Nodes: []string{"one", "two"}, Published: map[string][]v1alpha1.DrainTarget{"one": published}},
			{Name: "b", Nodes: []string{"one"}, PlanDefaults: v1alpha1.DrainPlanDefaultsNone},
		}}
		for i, podType := range []v1alpha1.PodType{"Default", "DaemonSet", "Static", "Other"} {
			o.Pods = append(o.Pods,
				plan.Pod{UID: uid("one", i), Node: "one", Type: podType, Priority: priority, Labels: labels, HasEvacuator: true, Verdicts: drains},
				plan.Pod{UID: uid("two", i), Node: "two", Type: podType, Labels: labels, Verdicts: drains},
			)
		}
		d := plan.Decide(o)
		if d.Targets.Len() == 0 {
			t.Errorf("no target: %v", d)
		}
		for name, m := range d.Maintenances {
			for node, n := range m.Nodes {
				if len(n.Targets) > 192 || len(n.Message) > 1024 || n.Message == "" {
					t.Errorf("%s on %s does not fit in a status: %v", name, node, n)
				}
			}
		}
		for _, defaults := range []v1alpha1.DrainPlanDefaults{"PriorityTiers", "None"} {
			if completed := plan.Complete(entries, defaults); showPlan(completed) != showPlan(plan.Complete(completed, defaults)) {
				t.Errorf("completing a plan is not idempotent: %v", completed)
			}
		}
	})
}

func uid(node string, i int) types.UID { return types.UID(fmt.Sprintf("%s-%d", node, i)) }
