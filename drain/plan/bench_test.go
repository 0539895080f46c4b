package plan_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// large is one maintenance in the middle of its drain: some Pods evacuate, rows are published.
func large(nodes, pods int) plan.Observation {
	m := maintenance("m").plan(upTo(1000), upTo(2000).app("db"), upTo(3000).app("cache"), upTo(5000), upTo(1000).daemonSets())
	m.Published = map[string][]v1alpha1.DrainTarget{}
	rows := targets([]entry{upTo(1000), upTo(2000).app("db"), upTo(1000).app("cache")})
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		m.Nodes = append(m.Nodes, name)
		m.Published[name] = rows
	}
	o := plan.Observation{Maintenances: []plan.Maintenance{m.Maintenance}}
	apps := []string{"web", "db", "cache"}
	for i := range pods {
		o.Pods = append(o.Pods, plan.Pod{
			UID: types.UID(fmt.Sprint(i)), Namespace: "default", Name: fmt.Sprintf("pod-%d", i),
			Node: m.Nodes[i%nodes], Priority: int32(i % 8 * 1000), HasEvacuator: true, Evacuating: i%16 == 1,
			Labels:   map[string]string{"app": apps[i%3], "pod-template-hash": "5d4f8c7b9"},
			Verdicts: map[string]plan.Verdict{"m": {Behavior: v1alpha1.DrainBehaviorDrain}},
		})
	}
	return o
}

func benchmark(b *testing.B, o plan.Observation) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		plan.Decide(o)
	}
}

func BenchmarkOneNode110Pods(b *testing.B) { benchmark(b, large(1, 110)) }

func BenchmarkLargestMaintenance5000Nodes10000Pods(b *testing.B) { benchmark(b, large(5000, 10000)) }

// A maintenance for each of 500 Nodes, and one for all of them.
func BenchmarkOverlapping501Maintenances(b *testing.B) {
	o := large(500, 5000)
	for _, name := range o.Maintenances[0].Nodes {
		m := plan.Maintenance{Name: "m-" + name, Nodes: []string{name}}
		o.Maintenances = append(o.Maintenances, m)
	}
	for i := range o.Pods {
		o.Pods[i].Verdicts["m-"+o.Pods[i].Node] = o.Pods[i].Verdicts["m"]
	}
	benchmark(b, o)
}

// A hundred maintenances of one Node, which no one should have.
func BenchmarkOneNode100Maintenances110Pods(b *testing.B) {
	o := large(1, 110)
	for i := range int32(100) {
		m := maintenance(fmt.Sprint("m-", i)).draining("node-0").plan(upTo(i * 100))
		o.Maintenances = append(o.Maintenances, m.Maintenance)
		for _, pod := range o.Pods {
			pod.Verdicts[m.Name] = plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Order: i % 3}
		}
	}
	benchmark(b, o)
}
