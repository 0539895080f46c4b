package plan

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Awaited returns the live Pods that a maintenance waits for and does not evacuate: those that must complete, and those that are
// undecided.
func Awaited(o Observation) sets.Set[types.UID] {
	awaited := sets.New[types.UID]()
	for _, n := range newScene(o).nodes {
		for _, p := range n.pods {
			if !p.Finished && p.vetoed() {
				awaited.Insert(p.UID)
			}
		}
	}
	return awaited
}
