package planinput

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Drain is a NodeMaintenance in stage Drain and the Nodes that it selects.
type Drain struct {
	Maintenance *v1alpha1.NodeMaintenance
	Nodes       []*corev1.Node
	// Suspended means that nothing is done for the NodeMaintenance, see machinedrain.IsSuspended.
	Suspended bool
}

// Component contains the NodeMaintenances in stage Drain that are connected, directly or indirectly, by shared Nodes. Their targets are
// decided together.
type Component struct {
	Maintenances []plan.Maintenance
	// Nodes are the names of all Nodes, Unreachable those of the unreachable ones.
	Nodes, Unreachable sets.Set[string]
	// DaemonSetsKept are the names of Nodes whose Pods of DaemonSets stay, see the function of this name.
	DaemonSetsKept sets.Set[string]

	members   map[string]*member   // by name
	selecting map[string][]*member // the NodeMaintenances that select a Node, by its name
	limits    map[string]int       // maxParallelNodes of the NodeMaintenances that have it, by name
}

// member is a NodeMaintenance of a Component, with its drain rules in effect.
type member struct {
	name    string
	rules   []v1alpha1.DrainRule
	matcher *rules.Matcher
	ordered bool // it evicts the Pods of StatefulSets in order

	schedulable bool // its Nodes that wait because of maxParallelNodes stay schedulable
}

// IsLimited reports whether a NodeMaintenance of the component has maxParallelNodes.
func (c *Component) IsLimited() bool { return len(c.limits) > 0 }

// Problems returns the drain rules of a NodeMaintenance of the component that cannot be parsed.
func (c *Component) Problems(maintenance string) []rules.Problem {
	return c.members[maintenance].matcher.Problems()
}

// Decide returns the targets of the component, none on the Nodes that wait because of maxParallelNodes.
func (c *Component) Decide(pods []plan.Pod, turns nodeselection.Turns) plan.Decision {
	all := plan.Decide(plan.Observation{Maintenances: c.Maintenances, Pods: pods, DaemonSetsKept: c.DaemonSetsKept})
	if turns.Waiting.Len() == 0 {
		return all
	}
	decision := plan.Decide(plan.Observation{Maintenances: c.without(turns.Waiting), Pods: pods, DaemonSetsKept: c.DaemonSetsKept})
	decision.Kept = all.Kept
	for name, maintenance := range decision.Maintenances {
		live := len(maintenance.Nodes) > 0 && !maintenance.Drained
		for node := range turns.Waiting {
			waiting, selected := all.Maintenances[name].Nodes[node]
			if !selected {
				continue
			}
			waiting.Targets, waiting.Message, waiting.Waiting = nil, turns.Message(name), true
			maintenance.Nodes[node], maintenance.Drained = waiting, false
			if !live { // no Node is drained at present
				maintenance.Blocking = turns.Message(name) + "."
			}
			decision.Maintenances[name] = maintenance
		}
	}
	return decision
}

// Awaited returns the live Pods that the component waits for and does not evacuate, without those of the Nodes that wait because of
// maxParallelNodes: see plan.Awaited.
func (c *Component) Awaited(pods []plan.Pod, turns nodeselection.Turns) sets.Set[types.UID] {
	return plan.Awaited(plan.Observation{Maintenances: c.without(turns.Waiting), Pods: pods})
}

// Turns decides which Nodes wait because of maxParallelNodes. Suspended NodeMaintenances neither start Nodes nor limit others.
func (c *Component) Turns(pods []plan.Pod) nodeselection.Turns {
	if !c.IsLimited() {
		return nodeselection.Turns{}
	}
	all := plan.Decide(plan.Observation{Maintenances: c.Maintenances, Pods: pods})
	states := map[string]nodeselection.Progress{}
	for node := range c.Nodes {
		states[node] = nodeselection.Progress{Drained: true}
	}
	drains := make([]nodeselection.Drain, 0, len(c.Maintenances))
	for _, m := range c.Maintenances {
		if m.Suspended {
			continue
		}
		drains = append(drains, nodeselection.Drain{
			Name: m.Name, Limit: c.limits[m.Name], Nodes: m.Nodes, Schedulable: c.members[m.Name].schedulable,
		})
		for _, node := range m.Nodes {
			state := states[node]
			state.Started = state.Started || len(m.Published[node]) > 0
			state.Drained = state.Drained && all.Maintenances[m.Name].Nodes[node].Drained
			states[node] = state
		}
	}
	for _, pod := range pods {
		if state, found := states[pod.Node]; found && pod.Evacuating && all.Targets.Has(pod.UID) {
			state.Started = true
			states[pod.Node] = state
		}
	}
	return nodeselection.TurnsOf(drains, states)
}

// without returns the maintenances of the component, without some Nodes.
func (c *Component) without(nodes sets.Set[string]) []plan.Maintenance {
	maintenances := slices.Clone(c.Maintenances)
	for i := range maintenances {
		maintenances[i].Nodes = slices.DeleteFunc(slices.Clone(maintenances[i].Nodes), nodes.Has)
	}
	return maintenances
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
	c := &Component{
		Nodes: sets.New[string](), Unreachable: sets.New[string](),
		members: map[string]*member{}, selecting: map[string][]*member{}, limits: map[string]int{},
	}
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
		each := newMember(specs[m.Name])
		c.members[m.Name] = each
		for _, node := range m.Nodes {
			c.selecting[node] = append(c.selecting[node], each)
		}
		m.SkippedTypes = each.matcher.SkippedTypes()
		c.Maintenances = append(c.Maintenances, m)
		c.Nodes.Insert(m.Nodes...)
		if limit := nodeselection.Limit(specs[m.Name].Spec.MaxParallelNodes, len(m.Nodes)); limit > 0 && !m.Suspended {
			c.limits[m.Name] = limit
		}
	}
	return c
}

func newMember(m *v1alpha1.NodeMaintenance) *member {
	inEffect := rules.InEffect(&m.Spec)
	return &member{
		name: m.Name, rules: inEffect, matcher: rules.NewMatcher(inEffect), ordered: m.Spec.Evacuation.StatefulSetPods == v1alpha1.StatefulSetPodsOrdered,
		schedulable: m.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable,
	}
}

// DaemonSetsKept returns the names of the Nodes of deleted Machines whose NodeMaintenances are in stage Cordon, because they wait for a
// turn, and skip the Pods of DaemonSets: these detach the volumes after the drain.
func DaemonSetsKept(maintenances []v1alpha1.NodeMaintenance) sets.Set[string] {
	kept := sets.New[string]()
	for i := range maintenances {
		m := &maintenances[i]
		if m.Spec.Stage == v1alpha1.StageCordon && m.DeletionTimestamp.IsZero() && servesDeletion(m) &&
			slices.Contains(newMember(m).matcher.SkippedTypes(), v1alpha1.PodTypeDaemonSet) {
			names, _ := nodeselection.Names(m)
			kept.Insert(names...)
		}
	}
	return kept
}

func servesDeletion(m *v1alpha1.NodeMaintenance) bool {
	_, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	return serves && m.Annotations[v1alpha1.RequestedForAnnotation] == v1alpha1.RequestedForDeletion
}

func (d Drain) planned(now time.Time) plan.Maintenance {
	m := d.Maintenance
	_, serves := m.Annotations[v1alpha1.OwnerMachineAnnotation]
	planned := plan.Maintenance{
		Name:           m.Name,
		DrainStart:     ptr.Deref(m.StageStart(v1alpha1.StageDrain), now), // a drain that has not started counts as the youngest
		Created:        m.CreationTimestamp.Time,
		Plan:           m.Spec.DrainPlan,
		PlanDefaults:   m.Spec.DrainPlanDefaults,
		ServesMachine:  serves,
		ServesDeletion: servesDeletion(m),
		Suspended:      d.Suspended,
		Published:      progress.Targets(&m.Status),
	}
	for _, node := range d.Nodes {
		planned.Nodes = append(planned.Nodes, node.Name)
	}
	return planned
}
