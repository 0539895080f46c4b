package forecast

import (
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
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/signals"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

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

func forecastPod(o Observation, terms evacuation.Terms, described planinput.Pod, pod *corev1.Pod, e *v1alpha1.Evacuation) Pod {
	verdict, _ := described.VerdictOf(o.Maintenance.Name)
	p := Pod{Pod: pod, Type: described.Type, Verdict: verdict, Evacuation: e}
	if described.Planned.Finished {
		p.Outcome = Finished
	}
	policy := o.Maintenance.Spec.Evacuation.SharedEvacuationPolicy
	policy.Surge = surge.PolicyFor(pod, terms.Maintenances)
	if e != nil && len(e.Spec.Evacuators) > 0 {
		p.Evacuators = slices.Clone(evacuation.WithLater(e.Spec.Evacuators, evacuators.Later(e, pod, p.Type, terms.Maintenances)))
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
	if rules.DeploymentOf(p.Pod) == "" || !slices.ContainsFunc(p.Evacuators, isOf(v1alpha1.EvacuatorClassDeployment)) {
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
	p.Next = evacuation.Next(evacuators.InputOf(p.expectedEvacuation(o), p.Pod, p.Type, p.withoutIdle(terms), o.Now))
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
	if deployment := rules.DeploymentOf(p.Pod); deployment != "" {
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
