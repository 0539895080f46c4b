package forecast

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// Outcome is what a drain does with a Pod in the end.
type Outcome string

const (
	// Evacuated means that the Pod gets an Evacuation: its evacuators act, and then it is evicted.
	Evacuated Outcome = "Evacuated"
	// Completes means that the drain waits until the Pod has completed.
	Completes Outcome = "Completes"
	// Stays means that the Pod remains on the Node and does not block the drain.
	Stays Outcome = "Stays"
	// Undecided means that missing information prevents a decision. The drain waits.
	Undecided Outcome = "Undecided"
	// Finished means that the Pod has completed or is gone from an unreachable Node.
	Finished Outcome = "Finished"
)

// Pod is the forecast for one Pod.
type Pod struct {
	*corev1.Pod
	// Type is empty if it is not known.
	Type    v1alpha1.PodType
	Outcome Outcome
	// Verdict of the drain rules.
	Verdict rules.Verdict
	// Step counts from 1. Pods of a step are evacuated when those of all earlier steps have terminated or completed. It is 0 for Pods
	// that stay or have finished.
	Step int
	// Budgets that cover the Pod, by name, if it is to be evicted.
	Budgets []*budgets.Budget
	// Waiting says why an eviction of this Pod alone would be refused now. It is nil if the eviction would succeed, or if the Pod is not
	// to be evicted.
	Waiting *budgets.Waiting
	// Unscheduled names another Pod of the budget that the Pod waits for, and says why the scheduler has found no Node for it. It is empty if
	// there is none.
	Unscheduled string
	// AtOnce means that the Pod is evicted when its step begins: no PodDisruptionBudget selects it, and no evacuator or backoff delays the
	// eviction.
	AtOnce bool
	// Deletes means that the Pod is deleted instead of evicted, see budgets.Candidate.
	Deletes bool
	// Evacuators are active one after the other before the eviction. Problems are annotations that name invalid ones.
	Evacuators []v1alpha1.Evacuator
	Problems   []evacuation.Problem
	// Surge is what the evacuator for Deployments is expected to do. It is nil if the Pod has no such evacuator, or if the Deployment was not
	// read.
	Surge *surge.Outlook
	// Set is the StatefulSet whose Pods are evicted in order, if the Pod has the evacuator for StatefulSets. InOrder is how many of its Pods
	// on the Nodes that are drained together are, and SetUnread means that it could not be read, and may require no order.
	Set       types.NamespacedName
	InOrder   int
	SetUnread bool
	// Next is the next action for the Pod, if it is a target now.
	Next evacuation.Action
	// Evacuation is the present one, or nil.
	Evacuation *v1alpha1.Evacuation
	// Shortage says that the drain deletes the Pod before its timeout, too late for its grace period. It is empty if the grace period fits.
	Shortage string

	surgePolicy v1alpha1.SurgePolicy // the most permissive one that is requested
	idle        []string             // the classes of evacuators that complete at once
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
		if pod.Spec.NodeName == o.Node.Name && surge.DeploymentOf(pod) != "" && surge.PolicyFor(pod, terms.Maintenances) != v1alpha1.SurgeNever {
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
	return types.NamespacedName{Namespace: pod.Namespace, Name: surge.DeploymentOf(pod)}
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

func forecastPod(o Observation, terms evacuation.Terms, described planinput.Pod, pod *corev1.Pod, e *v1alpha1.Evacuation) Pod {
	verdict, _ := described.VerdictOf(o.Maintenance.Name)
	p := Pod{Pod: pod, Type: described.Type, Verdict: verdict, Evacuation: e}
	if described.Planned.Finished {
		p.Outcome = Finished
	}
	policy := o.Maintenance.Spec.Evacuation.SharedEvacuationPolicy
	policy.Surge = surge.PolicyFor(pod, terms.Maintenances)
	if e != nil && len(e.Spec.Evacuators) > 0 {
		p.Evacuators = slices.Clone(evacuation.WithSurge(e, terms.Surges(pod, p.Type)))
	} else {
		p.Evacuators, p.Problems = described.Evacuators(pod, policy)
	}
	p.surgePolicy = requestedSurge(terms.Maintenances)
	if p.surgePolicy == v1alpha1.SurgeOnRequest && surge.Allows(p.surgePolicy, pod) {
		p.surgePolicy = v1alpha1.SurgeAlways
	}
	return p
}

// requestedSurge returns the most permissive surge policy of NodeMaintenances.
func requestedSurge(maintenances []*v1alpha1.NodeMaintenance) v1alpha1.SurgePolicy {
	ascending := []v1alpha1.SurgePolicy{v1alpha1.SurgeOnRequest, v1alpha1.SurgeIfSingleReplica, v1alpha1.SurgeAlways}
	most := v1alpha1.SurgeNever
	for _, m := range maintenances {
		if requested := m.Spec.Evacuation.Surge; slices.Index(ascending, requested) > slices.Index(ascending, most) {
			most = requested
		}
	}
	return most
}

// predictSurge removes the evacuator for Deployments from a Pod that it has refused or would refuse: it then reports why and completes at
// once. draining are those of the NodeMaintenances that drain the Node.
func (p *Pod) predictSurge(o Observation, maintenances []v1alpha1.NodeMaintenance, draining []*v1alpha1.NodeMaintenance) {
	if surge.DeploymentOf(p.Pod) == "" || !slices.ContainsFunc(p.Evacuators, isOf(v1alpha1.EvacuatorClassDeployment)) {
		return
	}
	if refused, found := surge.RefusedIn(p.Evacuation); found {
		p.Surge = &refused
		p.omit(v1alpha1.EvacuatorClassDeployment)
		return
	}
	leaving := p.leaving(o.Now)
	leaving.Policy, leaving.Restart = surge.PolicyFor(p.Pod, draining), surge.RestartsFor(p.Pod, draining)
	leaving.Drains = surge.DrainsOf(p.Pod, maintenances)
	deployment, known := o.Surges[deploymentOf(p.Pod)]
	if !known && leaving.Policy != v1alpha1.SurgeNever {
		return
	}
	deployment.Now, deployment.Drains = o.Now, surge.DrainsOf(nil, o.All)
	outlook := surge.OutlookOf(deployment, leaving)
	if p.Surge = &outlook; outlook.Refusal != "" {
		p.omit(v1alpha1.EvacuatorClassDeployment)
	}
}

// predictOrder removes the evacuator for StatefulSets from a Pod whose StatefulSet or NodeMaintenances require no order: it then completes
// at once.
func (p *Pod) predictOrder(o Observation, ordered bool) {
	if statefulset.SetOf(p.Pod) == "" || !slices.ContainsFunc(p.Evacuators, isOf(v1alpha1.EvacuatorClassStatefulSet)) {
		return
	}
	set, known := o.Sets[setOf(p.Pod)]
	if !ordered || known && !statefulset.Ordered(set) {
		p.omit(v1alpha1.EvacuatorClassStatefulSet)
		return
	}
	p.Set, p.SetUnread = setOf(p.Pod), !known
}

// omit removes an evacuator that completes at once.
func (p *Pod) omit(class string) {
	p.Evacuators, p.idle = slices.DeleteFunc(p.Evacuators, isOf(class)), append(p.idle, class)
}

func isOf(class string) func(v1alpha1.Evacuator) bool {
	return func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == class }
}

// leaving describes the Pod as the evacuator for Deployments observes it. The plugin does not read ReplicaSets: the name of the Pod's owner
// decides that the Deployment controls it.
func (p *Pod) leaving(now time.Time) surge.Leaving {
	leaving := surge.Leaving{
		PodRef: surge.PodRef{Name: p.Name, UID: p.UID}, Asked: true, Owned: true, Ready: rules.Ready(p.Pod), Restarted: p.Annotations[v1alpha1.RestartedAt],
	}
	leaving.Deadline = now.Add(time.Hour) // the forecast assumes progress
	if e := p.Evacuation; e != nil {
		leaving.Message, leaving.Surged = e.Status.Message, surge.SurgedIn(e)
		if e.Status.EvacuationProgressTimestamp != nil {
			leaving.Progress = e.Status.EvacuationProgressTimestamp.Time
		}
	}
	return leaving
}

// expectedEvacuation returns the Evacuation of the Pod, or the one that it would get, after the evacuators that have nothing to do have
// completed.
func (p *Pod) expectedEvacuation(o Observation) *v1alpha1.Evacuation {
	if p.Evacuation == nil {
		e := evacuation.New(p.Pod, p.Evacuators, o.Maintenance.Spec.Evacuation.ProgressDeadlineSeconds)
		e.CreationTimestamp = metav1.NewTime(o.Now)
		return e
	}
	if len(p.idle) == 0 {
		return p.Evacuation
	}
	e := p.Evacuation.DeepCopy()
	for _, class := range p.idle {
		if e.ActiveEvacuator() == class {
			e.Status.ActiveEvacuatorCompleted = true
		} else {
			e.Spec.Evacuators = slices.DeleteFunc(e.Spec.Evacuators, isOf(class))
		}
	}
	return e
}

// conclude sets what follows from the simulation.
func (p *Pod) conclude(o Observation, terms evacuation.Terms, steps map[types.UID]int, awaited sets.Set[types.UID]) {
	step, moves := steps[p.UID]
	switch {
	case p.Outcome == Finished:
		return
	case !moves:
		p.Outcome = Stays
		p.withoutEvacuation()
		return
	case !awaited.Has(p.UID):
		p.Outcome, p.Step = Evacuated, step
	case p.Verdict.Undecided != "":
		p.Outcome, p.Step = Undecided, step
	default:
		p.Outcome, p.Step = Completes, step
	}
	if p.Outcome != Evacuated {
		p.withoutEvacuation()
		return
	}
	p.Next = evacuation.Next(evacuation.InputOf(p.expectedEvacuation(o), p.Pod, p.Type, p.withoutIdle(terms), o.Now))
	if p.Type != v1alpha1.PodTypeDefault || o.Budgets == nil {
		return
	}
	candidate := budgets.Candidate{Pod: budgets.PodOf(p.Pod), DeleteUnready: terms.DeletesUnready}
	p.Budgets = o.Budgets.Covering(candidate.Pod)
	admitted, waiting := o.Budgets.Admit([]budgets.Candidate{candidate})
	if len(waiting) > 0 {
		p.Waiting = &waiting[0]
		p.Unscheduled = unscheduled(o, waiting[0])
		p.nameReceivers(o, terms)
	}
	p.Deletes = len(admitted) > 0 && admitted[0].Delete
	p.AtOnce = len(admitted) > 0 && len(p.Budgets) == 0 && p.DeletionTimestamp == nil && p.Next.Kind == evacuation.Evict
}

// withoutIdle returns the terms without those that add an evacuator which completes at once.
func (p *Pod) withoutIdle(terms evacuation.Terms) evacuation.Terms {
	terms.Ordered = terms.Ordered && !slices.Contains(p.idle, v1alpha1.EvacuatorClassStatefulSet)
	if slices.Contains(p.idle, v1alpha1.EvacuatorClassDeployment) {
		terms.Maintenances = nil
	}
	return terms
}

// withoutEvacuation forgets what was predicted for a Pod that is not evacuated.
func (p *Pod) withoutEvacuation() {
	p.Evacuators, p.Problems, p.Surge, p.Set, p.InOrder = nil, nil, nil, types.NamespacedName{}, 0
}

// Controller returns the kind and name of the controller of the Pod: the Deployment of its ReplicaSet, else the one in its owner
// references. They are empty if it has none. The kind is followed by its API group unless that is apps.
func (p *Pod) Controller() (kind, name string) {
	owner := metav1.GetControllerOfNoCopy(p.Pod)
	if deployment := surge.DeploymentOf(p.Pod); deployment != "" {
		return "Deployment", deployment
	} else if owner == nil {
		return "", ""
	}
	gk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	if gk.Group == appsv1.GroupName {
		gk.Group = ""
	}
	return gk.String(), owner.Name
}

// nameReceivers adds to what the Pod waits for which webhooks receive its eviction requests, although the budget refuses them.
func (p *Pod) nameReceivers(o Observation, terms evacuation.Terms) {
	namespace, known := o.Surroundings.NamespaceLabels(p.Namespace)
	if names := o.Receivers.Of(namespace, terms.EvictionWebhooks); known && len(names) > 0 && o.Budgets.Refuses(p.Waiting.Pod) {
		p.Waiting.Message = signals.Message(p.Waiting.Message, names)
	}
}

// unscheduled names a Pod without a Node that belongs to the budget which a Pod waits for. A budget that never allows a disruption does not
// wait for it.
func unscheduled(o Observation, waiting budgets.Waiting) string {
	if waiting.NeverAllowsDisruption {
		return ""
	}
	for i := range o.Unscheduled {
		other := &o.Unscheduled[i]
		isOfBudget := func(b *budgets.Budget) bool { return b.String() == waiting.Budget }
		if condition := rules.Unschedulable(other); condition != nil && slices.ContainsFunc(o.Budgets.Covering(budgets.PodOf(other)), isOfBudget) {
			return "Pod " + other.Namespace + "/" + other.Name + " is unschedulable: " + strings.TrimSuffix(condition.Message, ".")
		}
	}
	return ""
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
