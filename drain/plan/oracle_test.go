package plan_test

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

// An oracle knows the same definitions as the package, written down a second time, slowly and plainly. Property tests ask it
// whether a decision is right.
type oracle struct {
	o       plan.Observation
	plans   map[string][]v1alpha1.DrainPlanEntry
	cursors map[string]*place // nil: nothing holds the maintenance
}

// place is (type, order, plan entry).
type place [3]int

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p[0], q[0]), cmp.Compare(p[1], q[1]), cmp.Compare(p[2], q[2]))
}

func newOracle(o plan.Observation) *oracle {
	or := &oracle{o: o, plans: map[string][]v1alpha1.DrainPlanEntry{}, cursors: map[string]*place{}}
	for _, m := range o.Maintenances {
		or.plans[m.Name] = plan.Complete(m.Plan, m.PlanDefaults)
		for _, p := range o.Pods {
			if !or.holds(m, p) {
				continue
			}
			if at := or.place(m, p); or.cursors[m.Name] == nil || at.compare(*or.cursors[m.Name]) < 0 {
				or.cursors[m.Name] = &at
			}
		}
	}
	return or
}

func (or *oracle) on(node string) []plan.Maintenance {
	var result []plan.Maintenance
	for _, m := range or.o.Maintenances {
		if slices.Contains(m.Nodes, node) {
			result = append(result, m)
		}
	}
	return result
}

func (or *oracle) skips(m plan.Maintenance, p plan.Pod) bool {
	return p.Type == v1alpha1.PodTypeStatic && !p.HasEvacuator ||
		p.Type == v1alpha1.PodTypeDaemonSet && p.IsRecreated ||
		!p.Verdicts[m.Name].Undecided && p.Verdicts[m.Name].Behavior == v1alpha1.DrainBehaviorSkip
}

func (or *oracle) wants(m plan.Maintenance, p plan.Pod) bool {
	return !or.skips(m, p) && !p.Verdicts[m.Name].Undecided && p.Verdicts[m.Name].Behavior == v1alpha1.DrainBehaviorDrain
}

func (or *oracle) forbids(m plan.Maintenance, p plan.Pod) bool {
	return !or.skips(m, p) && !or.wants(m, p)
}

func (or *oracle) wanted(p plan.Pod) bool {
	return slices.ContainsFunc(or.on(p.Node), func(m plan.Maintenance) bool { return or.wants(m, p) })
}

func (or *oracle) forbidden(p plan.Pod) bool {
	return slices.ContainsFunc(or.on(p.Node), func(m plan.Maintenance) bool { return or.forbids(m, p) })
}

// holds says whether the maintenance isn't drained because of the Pod.
func (or *oracle) holds(m plan.Maintenance, p plan.Pod) bool {
	return !p.Finished && slices.Contains(m.Nodes, p.Node) && !or.skips(m, p)
}

func (or *oracle) place(m plan.Maintenance, p plan.Pod) place {
	podType := cmp.Or(p.Type, v1alpha1.PodTypeDefault)
	at := place{slices.Index([]v1alpha1.PodType{"Default", "DaemonSet", "Static"}, podType), 0, 0}
	if or.wants(m, p) {
		at[1] = int(p.Verdicts[m.Name].Order)
	}
	at[2] = slices.IndexFunc(or.plans[m.Name], func(e v1alpha1.DrainPlanEntry) bool {
		return e.PodType == podType && p.Priority <= e.PodPriority && selects(e.PodSelector.Core(), p)
	})
	return at
}

func selects(spec *metav1.LabelSelector, p plan.Pod) bool {
	if spec == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(spec)
	return err == nil && selector.Matches(labels.Set(p.Labels))
}

func (or *oracle) isCurrent(m plan.Maintenance, p plan.Pod) bool {
	return or.holds(m, p) && or.place(m, p) == *or.cursors[m.Name]
}

func (or *oracle) allows(m plan.Maintenance, p plan.Pod) bool {
	return or.skips(m, p) || or.wants(m, p) && or.place(m, p).compare(*or.cursors[m.Name]) <= 0
}

func (or *oracle) disallowing(p plan.Pod) []plan.Maintenance {
	return slices.DeleteFunc(or.on(p.Node), func(m plan.Maintenance) bool { return or.allows(m, p) })
}

// floor says whether the Pod has been reached before.
func (or *oracle) floor(p plan.Pod) bool {
	if p.Evacuating {
		return true
	}
	var rows []v1alpha1.DrainTarget
	for _, m := range or.on(p.Node) {
		rows = append(rows, m.Published[p.Node]...)
	}
	under := false
	for _, m := range or.on(p.Node) {
		if !or.wants(m, p) || len(m.Published[p.Node]) == 0 {
			continue
		}
		if !plan.CoversPod(rows, p, p.Verdicts[m.Name].Order) {
			return false
		}
		under = true
	}
	return under
}

// isTarget says whether the live Pod is to be targeted, contradictions aside.
func (or *oracle) mayGo(p plan.Pod) bool {
	return or.wanted(p) && !or.forbidden(p) && (or.floor(p) || len(or.disallowing(p)) == 0)
}

// waits says which maintenances each one waits for, when the Pods that may go are these.
func (or *oracle) waits(goes func(plan.Pod) bool) map[string][]string {
	graph := map[string][]string{}
	for _, p := range or.o.Pods {
		if p.Finished || !or.wanted(p) || or.forbidden(p) || goes(p) {
			continue
		}
		for _, m := range or.on(p.Node) {
			if !or.wants(m, p) || !or.isCurrent(m, p) {
				continue
			}
			for _, other := range or.disallowing(p) {
				graph[m.Name] = append(graph[m.Name], other.Name)
			}
		}
	}
	return graph
}

// reachable returns who can be reached in a graph, from's own name included only if a circle leads back.
func reachable(graph map[string][]string, from string) map[string]bool {
	seen := map[string]bool{}
	for queue := graph[from]; len(queue) > 0; queue = queue[1:] {
		if !seen[queue[0]] {
			seen[queue[0]] = true
			queue = append(queue, graph[queue[0]]...)
		}
	}
	return seen
}

// broughtForward says whether the deadlock rule names the Pod: it is of the current step of the oldest maintenance of a
// circle, and held back by members of that circle alone.
func (or *oracle) broughtForward(p plan.Pod) bool {
	graph := or.waits(or.mayGo)
	for _, m := range or.on(p.Node) {
		if !or.wants(m, p) || !or.isCurrent(m, p) || or.forbidden(p) {
			continue
		}
		inCircle := func(other string) bool {
			return reachable(graph, m.Name)[other] && reachable(graph, other)[m.Name]
		}
		isOldest := !slices.ContainsFunc(or.o.Maintenances, func(other plan.Maintenance) bool {
			return inCircle(other.Name) && olderThan(other, m)
		})
		heldByCircle := !slices.ContainsFunc(or.disallowing(p), func(other plan.Maintenance) bool { return !inCircle(other.Name) })
		if inCircle(m.Name) && isOldest && heldByCircle {
			return true
		}
	}
	return false
}

func olderThan(a, b plan.Maintenance) bool {
	return cmp.Or(a.DrainStart.Compare(b.DrainStart), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) < 0
}

// canGoOn says whether something happens that the maintenance waits for, in the end: a Pod goes, or is to complete, or its
// verdict is to be known.
func (or *oracle) canGoOn(m plan.Maintenance, d plan.Decision) bool {
	happens := func(name string) bool {
		return slices.ContainsFunc(or.o.Pods, func(p plan.Pod) bool {
			return or.isCurrent(or.byName(name), p) && (d.Targets.Has(p.UID) || or.forbidden(p))
		})
	}
	if or.cursors[m.Name] == nil || happens(m.Name) {
		return true
	}
	for other := range reachable(or.waits(func(p plan.Pod) bool { return d.Targets.Has(p.UID) }), m.Name) {
		if happens(other) {
			return true
		}
	}
	return false
}

func (or *oracle) byName(name string) plan.Maintenance {
	return or.o.Maintenances[slices.IndexFunc(or.o.Maintenances, func(m plan.Maintenance) bool { return m.Name == name })]
}
