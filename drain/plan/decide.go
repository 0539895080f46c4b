package plan

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Decide says who may go now, and why the others wait.
func Decide(o Observation) Decision {
	s := newScene(o)
	s.placeFloors()
	s.placeCursors()
	s.chooseTargets()
	s.followBlockers()
	return s.decision()
}

func (s *scene) decision() Decision {
	d := Decision{
		Targets:      sets.New[types.UID](),
		Maintenances: make(map[string]MaintenanceDecision, len(s.maintenances)),
	}
	for _, m := range s.maintenances {
		d.Maintenances[m.Name] = MaintenanceDecision{
			Nodes:    make(map[string]NodeDecision, len(m.nodes)),
			Drained:  len(m.nodes) > 0 && !m.live,
			Blocking: m.blocking(),
		}
	}
	for _, n := range s.nodes {
		for _, p := range n.pods {
			if p.targeted {
				d.Targets.Insert(p.UID)
			}
		}
		rows := n.rows()
		tallies := n.countPods()
		for i, m := range n.maintenances {
			d.Maintenances[m.Name].Nodes[n.name] = tallies[i].decision(m, m.publish(n, rows, s.selectors))
		}
	}
	return d
}

func (t *tally) decision(m *maintenance, targets []v1alpha1.DrainTarget) NodeDecision {
	d := NodeDecision{
		Targets:    targets,
		Message:    text.Cut(t.message(m), maxMessage),
		Pending:    t.pending,
		Evacuating: t.evacuating,
		Skipped:    t.skipped,
		Drained:    !t.left,
	}
	if len(t.overtakenBy) > 0 {
		d.FastForwardedBy = t.fastForwardedBy()
	}
	return d
}
