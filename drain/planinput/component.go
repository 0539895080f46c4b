package planinput

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Drain is a NodeMaintenance in stage Drain and the Nodes that it selects.
type Drain struct {
	Maintenance *v1alpha1.NodeMaintenance
	Nodes       []*corev1.Node
}

// Drains returns whether a NodeMaintenance takes part in the decision about the targets on its Nodes.
func Drains(m *v1alpha1.NodeMaintenance) bool {
	return m.Spec.Stage == v1alpha1.StageDrain && m.DeletionTimestamp.IsZero()
}

// Component contains the NodeMaintenances in stage Drain that are connected, directly or indirectly, by shared Nodes. Their targets are
// decided together.
type Component struct {
	Maintenances []plan.Maintenance
	// Matchers and Rules are those in effect, by name of the NodeMaintenance.
	Matchers map[string]*rules.Matcher
	Rules    map[string][]v1alpha1.DrainRule
	// Nodes are the names of all Nodes, Unreachable those of the unreachable ones.
	Nodes, Unreachable sets.Set[string]
}

// ComponentOf returns the component of the named NodeMaintenance.
func ComponentOf(name string, drains []Drain, now time.Time) *Component {
	return componentOf(name, drains, now, func(string) bool { return true })
}

// ComponentWithout returns the component of the named NodeMaintenance, without it: the decision then contains only the targets of the
// others.
func ComponentWithout(name string, drains []Drain, now time.Time) *Component {
	return componentOf(name, drains, now, func(other string) bool { return other != name })
}

func componentOf(name string, drains []Drain, now time.Time, include func(name string) bool) *Component {
	c := &Component{Matchers: map[string]*rules.Matcher{}, Rules: map[string][]v1alpha1.DrainRule{}, Nodes: sets.New[string](), Unreachable: sets.New[string]()}
	all, specs := make([]plan.Maintenance, 0, len(drains)), map[string]*v1alpha1.NodeMaintenance{}
	for _, drain := range drains {
		for _, node := range drain.Nodes {
			if rules.Unreachable(node) {
				c.Unreachable.Insert(node.Name)
			}
		}
		all, specs[drain.Maintenance.Name] = append(all, drain.planned(now)), drain.Maintenance
	}
	for _, m := range plan.Component(name, all) {
		if !include(m.Name) {
			continue
		}
		c.Rules[m.Name] = rules.InEffect(&specs[m.Name].Spec)
		c.Matchers[m.Name] = rules.NewMatcher(c.Rules[m.Name])
		m.SkippedTypes = c.Matchers[m.Name].SkippedTypes()
		c.Maintenances = append(c.Maintenances, m)
		c.Nodes.Insert(m.Nodes...)
	}
	return c
}

func (d Drain) planned(now time.Time) plan.Maintenance {
	m := d.Maintenance
	planned := plan.Maintenance{
		Name:         m.Name,
		DrainStart:   ptr.Deref(m.StageStart(v1alpha1.StageDrain), now), // a drain that has not started counts as the youngest
		Created:      m.CreationTimestamp.Time,
		Plan:         m.Spec.DrainPlan,
		PlanDefaults: m.Spec.DrainPlanDefaults,
		Published:    progress.Targets(&m.Status),
	}
	for _, node := range d.Nodes {
		planned.Nodes = append(planned.Nodes, node.Name)
	}
	return planned
}
