package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// cluster is what the controller and the world do to one another: what is stored is all that there is, so that every call of
// Decide is one after a restart.
type cluster struct {
	clock        int
	uids         int
	maintenances map[string]*plan.Maintenance
	pods         map[types.UID]*plan.Pod
}

var (
	nodeNames        = []string{"n1", "n2", "n3", "n4"}
	maintenanceNames = []string{"m1", "m2", "m3", "m4"}
)

func newCluster() *cluster {
	return &cluster{maintenances: map[string]*plan.Maintenance{}, pods: map[types.UID]*plan.Pod{}}
}

func drawSelector(t *rapid.T) *metav1.LabelSelector {
	switch rapid.IntRange(0, 5).Draw(t, "selector") {
	case 0:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Exists"}}}
	default:
		return nil
	}
}

func drawPlan(t *rapid.T) []v1alpha1.DrainPlanEntry {
	entries := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) v1alpha1.DrainPlanEntry {
		return v1alpha1.DrainPlanEntry{
			PodType:     rapid.SampledFrom([]v1alpha1.PodType{"", "Default", "Default", "DaemonSet", "Static"}).Draw(t, "type"),
			PodPriority: rapid.Int32Range(0, 3).Draw(t, "priority"),
			PodSelector: specOf(drawSelector(t)),
		}
	}), 0, 5).Draw(t, "plan")
	slices.SortStableFunc(entries, func(a, b v1alpha1.DrainPlanEntry) int { return int(a.PodPriority - b.PodPriority) })
	return entries
}

func drawNodes(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(nodeNames), 1, 3, rapid.ID).Draw(t, "nodes")
}

// drawVerdict draws mostly verdicts that drain; without holds only those and Skip.
func drawVerdict(t *rapid.T, holds bool) plan.Verdict {
	switch kind := rapid.IntRange(0, 15).Draw(t, "verdict"); {
	case kind == 0 && holds:
		return plan.Verdict{Behavior: v1alpha1.DrainBehaviorWaitCompleted}
	case kind == 1 && holds:
		return plan.Verdict{Undecided: true}
	case kind <= 3:
		return plan.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}
	default:
		order := rapid.SampledFrom([]int32{0, 0, 0, 1, 2, -1}).Draw(t, "order")
		return plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Order: order}
	}
}

func (c *cluster) addMaintenance(t *rapid.T) {
	name := rapid.SampledFrom(maintenanceNames).Draw(t, "maintenance")
	if c.maintenances[name] != nil {
		return
	}
	c.clock += rapid.IntRange(0, 1).Draw(t, "time passes")
	c.maintenances[name] = &plan.Maintenance{
		Name: name, DrainStart: time.Unix(int64(c.clock), 0),
		Plan: drawPlan(t), PlanDefaults: rapid.SampledFrom([]v1alpha1.DrainPlanDefaults{"", "PriorityTiers", "None"}).Draw(t, "defaults"),
		SkippedTypes:  rapid.SliceOfNDistinct(rapid.SampledFrom([]v1alpha1.PodType{"Default", "DaemonSet", "Static"}), 0, 2, rapid.ID).Draw(t, "skipped types"),
		ServesMachine: rapid.Bool().Draw(t, "serves a Machine"), ServesDeletion: rapid.Bool().Draw(t, "serves a deletion"),
		Nodes: drawNodes(t), Published: map[string][]v1alpha1.DrainTarget{},
	}
}

func (c *cluster) addPod(t *rapid.T, holds bool) {
	c.uids++
	p := &plan.Pod{
		UID: types.UID(fmt.Sprint(c.uids)), Namespace: "ns", Name: fmt.Sprintf("p%d", c.uids),
		Node:     rapid.SampledFrom(nodeNames).Draw(t, "node"),
		Type:     rapid.SampledFrom([]v1alpha1.PodType{"", "Default", "Default", "Default", "DaemonSet", "Static"}).Draw(t, "type"),
		Priority: rapid.Int32Range(0, 4).Draw(t, "priority"), HasEvacuator: rapid.Bool().Draw(t, "evacuator"),
		IsRecreated: rapid.IntRange(0, 3).Draw(t, "comesBack") == 0,
		Verdicts:    map[string]plan.Verdict{},
	}
	if app := rapid.SampledFrom([]string{"", "db", "web", "x"}).Draw(t, "app"); app != "" {
		p.Labels = map[string]string{"app": app}
	}
	for _, m := range maintenanceNames {
		p.Verdicts[m] = drawVerdict(t, holds)
	}
	c.pods[p.UID] = p
}

// draw picks one of the map's values, or nil.
func draw[K ~string, V any](t *rapid.T, from map[K]*V) *V {
	if len(from) == 0 {
		return nil
	}
	return from[rapid.SampledFrom(slices.Sorted(maps.Keys(from))).Draw(t, "which")]
}

func (c *cluster) observe() plan.Observation {
	var o plan.Observation
	for _, name := range slices.Sorted(maps.Keys(c.maintenances)) {
		o.Maintenances = append(o.Maintenances, *c.maintenances[name])
	}
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		o.Pods = append(o.Pods, *c.pods[uid])
	}
	return o
}

// act does what the controller does with a decision. It may be interrupted anywhere: does says which of its writes succeed.
func (c *cluster) act(does func() bool) {
	d := plan.Decide(c.observe())
	for _, name := range slices.Sorted(maps.Keys(c.maintenances)) {
		if !does() {
			continue
		}
		m := c.maintenances[name]
		m.Published = map[string][]v1alpha1.DrainTarget{}
		for node, nodeDecision := range d.Maintenances[name].Nodes {
			m.Published[node] = nodeDecision.Targets
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		if p := c.pods[uid]; !p.Finished && does() {
			p.Evacuating = d.Targets.Has(uid)
		}
	}
}

func always() bool { return true }

func (c *cluster) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"add maintenance":    c.addMaintenance,
		"add pod":            func(t *rapid.T) { c.addPod(t, true) },
		"add another pod":    func(t *rapid.T) { c.addPod(t, true) },
		"remove maintenance": func(t *rapid.T) { delete(c.maintenances, drawName(t, c.maintenances)) },
		"delete pod":         func(t *rapid.T) { delete(c.pods, drawName(t, c.pods)) },
		"act":                func(*rapid.T) { c.act(always) },
		"act, interrupted":   func(t *rapid.T) { c.act(func() bool { return rapid.Bool().Draw(t, "succeeds") }) },
		"finish pod": func(t *rapid.T) {
			if p := draw(t, c.pods); p != nil {
				p.Finished = true
			}
		},
		"evacuated": func(t *rapid.T) {
			for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
				if c.pods[uid].Evacuating && rapid.Bool().Draw(t, "gone") {
					delete(c.pods, uid)
				}
			}
		},
		"change rules": func(t *rapid.T) {
			if p := draw(t, c.pods); p != nil {
				p.Verdicts = maps.Clone(p.Verdicts)
				p.Verdicts[rapid.SampledFrom(maintenanceNames).Draw(t, "of")] = drawVerdict(t, true)
			}
		},
		"nodes join and leave": func(t *rapid.T) {
			if m := draw(t, c.maintenances); m != nil {
				m.Nodes = drawNodes(t)
				maps.DeleteFunc(m.Published, func(node string, _ []v1alpha1.DrainTarget) bool {
					return !slices.Contains(m.Nodes, node)
				})
			}
		},
	}
}

func drawName[K ~string, V any](t *rapid.T, from map[K]*V) K {
	if len(from) == 0 {
		return ""
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(from))).Draw(t, "which")
}

// evacuate has some of the targeted Pods go, one at least.
func (c *cluster) evacuate(t *rapid.T) {
	var evacuating []types.UID
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		if c.pods[uid].Evacuating {
			evacuating = append(evacuating, uid)
		}
	}
	for _, uid := range rapid.SliceOfNDistinct(rapid.SampledFrom(evacuating), 1, -1, rapid.ID).Draw(t, "gone") {
		delete(c.pods, uid)
	}
}
