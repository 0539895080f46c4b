package forecast

import (
	"cmp"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

// Observation is the state that a forecast is made from.
type Observation struct {
	// Maintenance is the NodeMaintenance of the Node as the manager would create or update it, in stage Drain.
	Maintenance *v1alpha1.NodeMaintenance
	// Then, if not nil, is the NodeMaintenance as the manager updates it when everything else is drained, to drain the Pods of
	// DaemonSets.
	Then *v1alpha1.NodeMaintenance
	Node *corev1.Node
	// Nodes are those that Maintenance selects, Node among them. Empty means only Node.
	Nodes []*corev1.Node
	// Others are the other NodeMaintenances in stage Drain with the Nodes that they select.
	Others []planinput.Drain
	// All are all NodeMaintenances of the workload cluster, as far as they were read.
	All []v1alpha1.NodeMaintenance
	// Pods of all Nodes of the component, and their Evacuations.
	Pods        []corev1.Pod
	Evacuations []v1alpha1.Evacuation
	// Surroundings answers questions about Namespaces and DaemonSets.
	Surroundings planinput.Surroundings
	// Budgets of the Namespaces of the Pods.
	Budgets *budgets.Index
	// Receivers are the admission webhooks that receive eviction requests, as far as they were read.
	Receivers signals.Receivers
	// Unscheduled are Pods of these Namespaces that have no Node.
	Unscheduled []corev1.Pod
	// Surges has the Deployments of DeploymentsOf that could be read, with what else decides whether they surge. The Deployment is nil if it
	// does not exist.
	Surges map[types.NamespacedName]surge.Observation
	// Sets has the StatefulSets of StatefulSetsOf that could be read, nil for one that does not exist.
	Sets map[types.NamespacedName]*appsv1.StatefulSet
	// NodeAgent means that the manager serves node agents.
	NodeAgent bool
	Now       time.Time
}

// Forecast is the predicted drain of a Node.
type Forecast struct {
	// Pods of the Node, by step, then by namespace and name. Pods that stay are last.
	Pods []Pod
	// Targets are the Pods of the Node that are targets now.
	Targets sets.Set[types.UID]
	// Waiting says for which other Nodes the drain of the Node waits because of maxParallelNodes. It is empty if the drain does not wait.
	Waiting string
}

// NodesOf returns the names of the Nodes whose Pods must be observed to predict the drain.
func NodesOf(o Observation) []string { return sets.List(component(o).Nodes) }

// DeploymentsOf returns the Deployments that the NodeMaintenances ask to surge for Pods of the Node.
func DeploymentsOf(o Observation) []types.NamespacedName {
	found, terms := map[types.NamespacedName]bool{}, evacuation.DrainersOf(maintenancesOf(o), nil).On(o.Node).Combined()
	for i := range o.Pods {
		pod := &o.Pods[i]
		if pod.Spec.NodeName == o.Node.Name && rules.DeploymentOf(pod) != "" && surge.PolicyFor(pod, terms.Maintenances) != v1alpha1.SurgeNever {
			found[deploymentOf(pod)] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}

// StatefulSetsOf returns the StatefulSets of Pods of the Node that the NodeMaintenances ask to evict in order.
func StatefulSetsOf(o Observation) []types.NamespacedName {
	found := sets.New[types.NamespacedName]()
	if evacuation.DrainersOf(maintenancesOf(o), nil).On(o.Node).Combined().Ordered {
		for i := range o.Pods {
			if pod := &o.Pods[i]; pod.Spec.NodeName == o.Node.Name && statefulset.SetOf(pod) != "" {
				found.Insert(setOf(pod))
			}
		}
	}
	return found.UnsortedList()
}

func setOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: statefulset.SetOf(pod)}
}

func deploymentOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: rules.DeploymentOf(pod)}
}

// selected returns the Nodes that the NodeMaintenance selects.
func (o Observation) selected() []*corev1.Node {
	if len(o.Nodes) == 0 {
		return []*corev1.Node{o.Node}
	}
	return o.Nodes
}

// timeout returns the time limits of the drain, as if it began now if it has not begun. It is nil if the drain has none.
func (o Observation) timeout() *draintimeout.Drain {
	m := o.Maintenance
	if m.StageStart(v1alpha1.StageDrain) == nil {
		m = m.DeepCopy()
		m.Status.StageStatuses = append(m.Status.StageStatuses, v1alpha1.StageStatus{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(o.Now)})
	}
	return draintimeout.DrainOf(m, nil, o.Now)
}

// shortage says that a Pod is deleted too late for its grace period, see draintimeout.Drain.Shortage.
func shortage(o Observation, timeout *draintimeout.Drain, described planinput.Pod, pod *corev1.Pod) string {
	verdict, others := described.VerdictOf(o.Maintenance.Name)
	if timeout == nil || described.Planned.Finished || pod.DeletionTimestamp != nil || !draintimeout.DeletedAtTimeout(described.Type, verdict, others) {
		return ""
	}
	period, _ := rules.RequestedGracePeriod(pod, rules.Unreachable(o.Node))
	return timeout.Shortage(period)
}

func component(o Observation) *planinput.Component {
	drains := append(slices.Clone(o.Others), planinput.Drain{Maintenance: o.Maintenance, Nodes: o.selected()})
	return planinput.ComponentOf(o.Maintenance.Name, drains, o.Now)
}

// Of returns the forecast.
func Of(o Observation) Forecast {
	c := component(o)
	byNode := map[string][]*corev1.Pod{}
	for i := range o.Pods {
		byNode[o.Pods[i].Spec.NodeName] = append(byNode[o.Pods[i].Spec.NodeName], &o.Pods[i])
	}
	maintenances := maintenancesOf(o)
	terms := evacuation.DrainersOf(maintenances, nil).On(o.Node).Combined()
	result, timeout, evacuations := Forecast{}, o.timeout(), evacuationsOf(o)
	var planned []plan.Pod
	for _, node := range sets.List(c.Nodes) {
		served := o.NodeAgent && staticpod.Served(byNode[node])
		for _, pod := range byNode[node] {
			e := evacuations[pod.UID]
			described := c.Pod(o.Surroundings, pod, e, served, o.Now)
			planned = append(planned, described.Planned)
			if node == o.Node.Name {
				p := forecastPod(o, terms, described, pod, e)
				p.predictSurge(o, maintenances, terms.Maintenances)
				p.predictOrder(o, terms.Ordered)
				p.Shortage = shortage(o, timeout, described, pod)
				result.Pods = append(result.Pods, p)
			}
		}
	}
	turns := c.Turns(planned)
	result.Targets = c.Decide(planned, turns).Targets
	if turns.Waiting.Has(o.Node.Name) {
		result.Waiting = turns.Message(o.Maintenance.Name)
	}
	steps, awaited := simulate(c, planned)
	inOrder := map[types.NamespacedName]int{}
	for i := range o.Pods {
		if uid := o.Pods[i].UID; steps[uid] > 0 && !awaited.Has(uid) {
			inOrder[setOf(&o.Pods[i])]++
		}
	}
	for i := range result.Pods {
		result.Pods[i].InOrder = inOrder[result.Pods[i].Set]
		result.Pods[i].conclude(o, terms, steps, awaited)
	}
	if o.Then != nil {
		result.add(o)
	}
	slices.SortFunc(result.Pods, comparePods)
	number(result.Pods)
	return result
}

// add adds the Pods that only the later NodeMaintenance evacuates, after all others.
func (f *Forecast) add(o Observation) {
	last, later := 0, map[types.UID]Pod{}
	for _, p := range f.Pods {
		last = max(last, p.Step)
	}
	o.Maintenance, o.Then = o.Then, nil
	for _, p := range Of(o).Pods {
		later[p.UID] = p
	}
	for i := range f.Pods {
		if p := later[f.Pods[i].UID]; f.Pods[i].Outcome == Stays && p.Step > 0 {
			p.Step += last
			f.Pods[i] = p
		}
	}
}

// number numbers the steps without gaps: some steps only concern Pods of other Nodes.
func number(sorted []Pod) {
	before, step := 0, 0
	for i := range sorted {
		if sorted[i].Step != before {
			before = sorted[i].Step
			step++
		}
		if before == 0 {
			return
		}
		sorted[i].Step = step
	}
}

// simulate repeats the decision of the component. After each step it removes the targets as if they had terminated. Where no target is
// left, it removes the Pods that must complete or are undecided, and adds them to awaited.
func simulate(c *planinput.Component, pods []plan.Pod) (steps map[types.UID]int, awaited sets.Set[types.UID]) {
	steps, awaited = map[types.UID]int{}, sets.New[types.UID]()
	pods = slices.DeleteFunc(slices.Clone(pods), func(p plan.Pod) bool { return p.Finished })
	for step := 1; len(pods) > 0; step++ {
		turns := c.Turns(pods)
		leaving := c.Decide(pods, turns).Targets
		if leaving.Len() == 0 {
			if leaving = c.Awaited(pods, turns); leaving.Len() == 0 {
				break
			}
			awaited = awaited.Union(leaving)
			step = max(1, step-1) // they are expected to complete during the previous step
		}
		for uid := range leaving {
			steps[uid] = step
		}
		pods = slices.DeleteFunc(pods, func(p plan.Pod) bool { return leaving.Has(p.UID) })
	}
	return steps, awaited
}

// maintenancesOf returns all NodeMaintenances as if they had observed their Nodes.
func maintenancesOf(o Observation) []v1alpha1.NodeMaintenance {
	maintenances := []v1alpha1.NodeMaintenance{*selecting(o.Maintenance, o.selected())}
	for _, other := range o.Others {
		maintenances = append(maintenances, *selecting(other.Maintenance, other.Nodes))
	}
	return maintenances
}

func selecting(m *v1alpha1.NodeMaintenance, nodes []*corev1.Node) *v1alpha1.NodeMaintenance {
	m = m.DeepCopy()
	m.Status.NodeStatuses = nil
	for _, node := range nodes {
		m.Status.NodeStatuses = append(m.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: node.Name}})
	}
	return m
}

// evacuationsOf returns the Evacuations of Pods, by the UID of the Pod. There may be thousands of Pods that have none here.
func evacuationsOf(o Observation) map[types.UID]*v1alpha1.Evacuation {
	pods, found := map[types.UID]*corev1.Pod{}, map[types.UID]*v1alpha1.Evacuation{}
	for i := range o.Pods {
		pods[o.Pods[i].UID] = &o.Pods[i]
	}
	for i := range o.Evacuations {
		e := &o.Evacuations[i]
		uid := types.UID(e.Spec.PodRef.UID)
		if pod := pods[uid]; pod != nil && found[uid] == nil && evacuation.IsOf(e, pod) {
			found[uid] = e
		}
	}
	return found
}

func comparePods(a, b Pod) int {
	last := func(p Pod) int {
		if p.Step == 0 {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// WaitingNamespaces returns the Namespaces of the Pods of the Node that wait for a PodDisruptionBudget which may allow a disruption when
// other Pods are ready.
func WaitingNamespaces(o Observation) []string {
	namespaces := sets.New[string]()
	for _, p := range Of(o).Pods {
		if p.Waiting != nil && !p.Waiting.NeverAllowsDisruption {
			namespaces.Insert(p.Namespace)
		}
	}
	return sets.List(namespaces)
}
