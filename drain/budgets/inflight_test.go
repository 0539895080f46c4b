package budgets_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
)

func TestEvictions(t *testing.T) {
	t.Run("E56: Pods that exceed the limit of the workload cluster leave no disruption to younger drains, which cannot evict either", func(t *testing.T) {
		all, next := budgets.Evictions{}, budgets.Pod{Namespace: "web", Node: "oldest"}
		for i := range budgets.EvictionsInCluster {
			id := fmt.Sprint(i)
			all[types.UID(id)] = budgets.Eviction{Pod: budgets.Pod{Namespace: "other", Node: id}}
		}
		if free, allowed := all.FreeFor(next), all.Allow(next); free != budgets.EvictionsOnNode || allowed {
			t.Errorf("%d more are free, allowed: %t", free, allowed)
		}
	})
	t.Run("E82: no eviction waits that the limits would allow if hanging evictions counted for all Namespaces", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			all := budgets.Evictions{}
			namespaces, nodes := rapid.IntRange(1, 4).Draw(t, "namespaces"), rapid.IntRange(1, 12).Draw(t, "nodes")
			for i := range rapid.IntRange(1, 300).Draw(t, "evictions") {
				next := budgets.Pod{
					UID: types.UID(fmt.Sprint(i)), Namespace: fmt.Sprint(rapid.IntRange(1, namespaces).Draw(t, "namespace")),
					Node: fmt.Sprint(rapid.IntRange(1, nodes).Draw(t, "node")),
				}
				onNode := 0
				for _, e := range all {
					if e.Pod.Node == next.Node {
						onNode++
					}
				}
				allowed := len(all) < budgets.EvictionsInCluster && onNode < budgets.EvictionsOnNode
				switch begins := all.Allow(next); {
				case !begins && allowed:
					t.Fatalf("%d evictions, %d of them on the Node, and another one of Namespace %s waits", len(all), onNode, next.Namespace)
				case begins && len(all) >= 192:
					t.Fatalf("%d evictions are in flight", len(all)+1)
				case begins:
					all[next.UID] = budgets.Eviction{Pod: next, Hangs: rapid.Bool().Draw(t, "hangs")}
				}
			}
		})
	})
}
