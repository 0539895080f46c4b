package chaos

import (
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/fleet"
)

// lag is how old an observation may be on which a request is based. It includes the longest fault: a manager that is frozen between its
// decision and its request sends the request after it continues.
const lag = 30 * time.Second

// handover is the time after its start in which a manager may repeat a request that its predecessor sent and that was still being
// processed.
const handover = 10 * time.Second

// invariant is what must be true for every history. Check returns a line for each violation.
type invariant struct {
	name  string
	check func(*History) []string
}

// invariants lists the invariants, with the requirements that they are about.
var invariants = []invariant{
	{"E18: every removal of a Pod has the UID of the Pod as precondition", removalsNameTheUID},
	{"E38: no Pod is evicted twice", evictedOnce},
	{"R10: Pods are removed only from Nodes under a maintenance in stage Drain", evictedInStageDrain},
	{"M1, M5, R45: no Pod is removed that a rule or label skips or waits for", protectedStay},
	{"E18: no Pod is removed without a disruption that its PodDisruptionBudget allows", budgetsRespected},
	{"E55: no Pod is evicted just after its PodDisruptionBudget was deleted", replacementsAwaited},
	{"M4: Pods with a lower drain order are removed first", orderRespected},
	{"M13, M39, M92, M93: no hook is removed before the Pods are, unless the drain timed out", hookHeld},
	{"M19: no hook is removed before the volumes are detached", volumesDetached},
	{"E52, M96: no hook is removed because of a drain timeout before each Pod had its final eviction attempt", finalAttemptsMade},
	{"M12: Cluster API's core manager does not evict", coreDoesNotEvict},
	{"R65: no controller reconciles again and again", reconciledForReasons},
	{"R65, R91: no request is repeated again and again", requestedForReasons},
	{"M16: what is paused is not changed", pausesRespected},
	{"M113, M115: no Pod of a Node is removed while a hook of another owner holds its drain, nor is its Machine released", hooksRespected},
	{"R19, M18: Nodes are restored to their recorded state", nodesRestored},
	{"E57: a NodeMaintenance of a user withdraws from all Evacuations before it is gone", withdrawn},
	{"E25: a surge is restored exactly once", surgesRestored},
}

// Result has the name of an invariant, which begins with the numbers of requirements, and a line for each violation.
type Result struct {
	Invariant  string
	Violations []string
}

// Check checks each invariant.
func (h *History) Check() []Result {
	var results []Result
	for _, each := range invariants {
		results = append(results, Result{each.name, each.check(h)})
	}
	return results
}

// Violations returns what the history violates, a line for each.
func (h *History) Violations() []string {
	var all []string
	for _, result := range h.Check() {
		for _, violation := range result.Violations {
			all = append(all, result.Invariant+": "+violation)
		}
	}
	return all
}

func removalsNameTheUID(h *History) []string {
	var found []string
	for _, r := range h.removals() {
		if r.RequestObject != nil && r.UIDPrecondition() == "" {
			found = append(found, r.String())
		}
	}
	return found
}

// responsesLost are the faults after which the manager may not know the response to a request that a workload cluster has carried out.
var responsesLost = []string{networkReset, writesLost, "workload-apiserver-killed"}

// delivery is how long a response may be on its way.
const delivery = time.Second

// evictedOnce allows a second request only shortly after the first one was processed, and only where the manager does not know the
// response: its process was killed, or a fault has lost the response. A leader and the one before may do so.
func evictedOnce(h *History) []string {
	var found []string
	last := map[types.UID]removal{}
	for _, r := range h.carriedOut() {
		if !r.isEviction() {
			continue
		}
		previous, evicted := last[r.pod.uid]
		last[r.pod.uid] = r
		switch {
		case evicted && h.Replicas <= 1 && !h.managerStarted(previous.Requested, r.Requested) &&
			!h.hadFault(previous.Requested, previous.Answered.Add(delivery), responsesLost...) &&
			!h.hadFault(previous.Requested, r.Requested, leaderReplaced):
			found = append(found, fmt.Sprintf("%s: the same manager process had evicted this Pod: %s", r, previous))
		case evicted && r.Requested.Sub(previous.Answered) > handover:
			found = append(found, fmt.Sprintf("%s: the Pod had been evicted: %s", r, previous))
		case r.at <= h.Workload.Clock.Before(r.Requested.Add(-lag)):
			found = append(found, fmt.Sprintf("%s: the Pod was terminating for more than %s", r, lag))
		}
	}
	return found
}

func (h *History) managerStarted(after, before time.Time) bool {
	return slices.ContainsFunc(h.Managers, func(t time.Time) bool { return t.After(after) && t.Before(before) })
}

func evictedInStageDrain(h *History) []string {
	v := h.verdicts()
	var found []string
	for _, r := range h.carriedOut() {
		node, _ := r.pod.boundSince()
		if !v.inStageDrain(node, h.Workload.Clock.Before(r.Requested.Add(-lag)), r.at) {
			found = append(found, fmt.Sprintf("%s: no NodeMaintenance in stage Drain selected Node %s", r, node))
		}
	}
	return found
}

// protectedStay allows a drain that deletes Pods before its timeout to delete those that it waited for, by any verdict that it may have
// observed last: a label may have skipped the Pod before.
func protectedStay(h *History) []string {
	v, l := h.verdicts(), h.limits()
	var found []string
	for _, r := range h.carriedOut() {
		since := h.observedSince(r.Requested, lag)
		all := v.between(r.pod, since, r.Requested)
		deletes := l.deletesBeforeTimeout(r)
		if len(all) > 0 && !slices.ContainsFunc(all, func(each verdict) bool {
			return !each.protects() || deletes && each.behavior == v1alpha1.DrainBehaviorWaitCompleted
		}) {
			found = append(found, fmt.Sprintf("%s: rules or labels protected the Pod for %s", r, r.Requested.Sub(since)))
		}
	}
	return found
}

// budgetsRespected replays the status of the budgets: for each removed Pod that was ready, the only PodDisruptionBudget that selects it
// must have counted it in disruptedPods, at the cost of a disruption that it allowed. The eviction of a Pod that terminates needs no
// disruption: its ReplicaSet may have deleted it at the end of a surge, or a deletion before the drain timeout was sent at the same time.
func budgetsRespected(h *History) []string {
	budgets := timelines[*policyv1.PodDisruptionBudget](&h.Workload, budgetKeys)
	l, all := h.limits(), h.carriedOut()
	var found []string
	for _, r := range all {
		pod, exists := r.pod.versions.at(r.at - 1)
		from := h.Workload.Clock.Before(r.Requested)
		if !exists || !isProtectable(pod) || r.isEviction() && r.at <= from {
			continue
		}
		var selecting []timeline[*policyv1.PodDisruptionBudget]
		for _, budget := range budgets {
			if alwaysSelects(budget, pod, from, r.at) {
				selecting = append(selecting, budget)
			}
		}
		switch {
		case len(selecting) == 0:
		case slices.ContainsFunc(all, func(d removal) bool {
			return d.pod == r.pod && !d.Requested.After(r.Answered) && l.deletesBeforeTimeout(d)
		}):
		case len(selecting) > 1:
			found = append(found, fmt.Sprintf("%s: %d PodDisruptionBudgets select the Pod", r, len(selecting)))
		case !granted(selecting[0], pod, h.grantedBy(r)):
			found = append(found, fmt.Sprintf("%s: PodDisruptionBudget %s had not granted the disruption", r, selecting[0][0].object.Name))
		}
	}
	return found
}

// isProtectable returns whether the eviction of a Pod needs a disruption that its budget allows, if it has one.
func isProtectable(pod *corev1.Pod) bool {
	return rules.Ready(pod) && pod.Status.Phase == corev1.PodRunning && !isOfDaemonSet(pod)
}

// grantedBy returns the revision by which the budget must have granted the disruption: before the Pod terminates, or before the response to
// an eviction. A Pod that is deleted before the drain timeout of its Machine may terminate before its eviction is granted.
func (h *History) grantedBy(r removal) int64 {
	if r.isEviction() {
		return max(r.at, h.Workload.Clock.After(r.Answered))
	}
	return r.at
}

// alwaysSelects returns whether a budget existed and selected the Pod during a whole period.
func alwaysSelects(budget timeline[*policyv1.PodDisruptionBudget], pod *corev1.Pod, from, until int64) bool {
	states := budget.during(from, until)
	for _, state := range states {
		if !state.exists || !selectsPod(state.object, pod) {
			return false
		}
	}
	return len(states) > 0 && states[0].revision <= from
}

func selectsPod(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	return err == nil && budget.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels))
}

// granted returns whether the budget had counted the Pod by a revision, with a disruption that it allowed.
func granted(budget timeline[*policyv1.PodDisruptionBudget], pod *corev1.Pod, until int64) bool {
	for i, state := range budget {
		if i == 0 || state.revision > until || !state.exists || !budget[i-1].exists {
			continue
		}
		before, after := budget[i-1].object.Status, state.object.Status
		since, counted := after.DisruptedPods[pod.Name]
		_, already := before.DisruptedPods[pod.Name] // after an eviction that was cut off
		if counted && (!already || !since.Time.Equal(before.DisruptedPods[pod.Name].Time)) && before.DisruptionsAllowed > 0 &&
			after.DisruptionsAllowed == before.DisruptionsAllowed-1 {
			return true
		}
	}
	return false
}

// deletesBeforeTimeout returns whether it is a deletion 5 s plus the grace period of the Pod before the drain of the Machine times out, or
// later, but not in the first 10 s, or the first half of a shorter time, unless the eviction of the Pod was refused.
func (l *limits) deletesBeforeTimeout(r removal) bool {
	node, _ := r.pod.boundSince()
	end, not := l.drainMayEnd(node, r.Requested)
	if r.isEviction() || !l.DeletesOnTimeout || not != "" {
		return false
	}
	pod, exists := r.pod.versions.at(r.at - 1)
	timeout, at := l.timeout(node, r.Requested, drainTimeout), r.Requested.Add(l.ClockOff).Add(rounding)
	if begin := end.Add(-timeout); at.Before(begin) || exists && at.Before(end.Add(-gracePeriod(pod)-5*time.Second)) {
		return false
	}
	return !at.Before(end.Add(min(10*time.Second, timeout/2)-timeout)) || slices.ContainsFunc(l.removals(), func(e removal) bool {
		return e.isEviction() && !e.succeeded() && e.pod != nil && e.pod.uid == r.pod.uid && e.Answered.Before(r.Requested)
	})
}

func gracePeriod(pod *corev1.Pod) time.Duration {
	return time.Duration(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)) * time.Second
}

// replacement is how long evictions wait for the replacement of a budget that was deleted.
const replacement = 3 * time.Second

// replacementsAwaited checks that no more Pods are evicted in this time than the deleted budget allowed: the manager may not have observed
// its deletion.
func replacementsAwaited(h *History) []string {
	budgets, limited := timelines[*policyv1.PodDisruptionBudget](&h.Workload, budgetKeys), h.machinesWithTimeout()
	all := slices.DeleteFunc(h.carriedOut(), func(r removal) bool {
		node, _ := r.pod.boundSince()
		pod, exists := r.pod.versions.at(r.at - 1)
		return limited[node] || !r.isEviction() || !exists || !rules.Ready(pod) || isOfDaemonSet(pod) // a final eviction attempt does not wait
	})
	var found []string
	for name, versions := range budgets {
		for i, version := range versions {
			if version.exists || i == 0 || !versions[i-1].exists {
				continue
			}
			budget := versions[i-1].object
			from, until := h.Workload.Clock.period(version.revision)
			if h.mayNotKnow(from, until) {
				continue
			}
			evicted := slices.DeleteFunc(slices.Clone(all), func(r removal) bool {
				pod, _ := r.pod.versions.at(r.at - 1)
				return r.Requested.Before(until) || !r.Requested.Before(from.Add(replacement)) || !selectsPod(budget, pod) || h.isSelected(budgets, r)
			})
			if len(evicted) > int(budget.Status.DisruptionsAllowed) {
				allowed, at := budget.Status.DisruptionsAllowed, until.Format("15:04:05.000")
				found = append(found, fmt.Sprintf("PodDisruptionBudget %s allowed %d disruptions when it was deleted at %s: %v", name, allowed, at, evicted))
			}
		}
	}
	return found
}

// mayNotKnow returns whether the manager may not have observed a budget that was deleted in a period, or not its deletion. It observes
// budgets from the first drain of the workload cluster on.
func (h *History) mayNotKnow(from, until time.Time) bool {
	observed := slices.ContainsFunc(slices.Collect(maps.Values(timelines[*v1alpha1.NodeMaintenance](&h.Workload, maintenanceKeys))),
		func(versions timeline[*v1alpha1.NodeMaintenance]) bool {
			return slices.ContainsFunc(versions.during(0, h.Workload.Clock.Before(from.Add(-lag))), func(s stored[*v1alpha1.NodeMaintenance]) bool {
				return s.exists && s.object.Spec.Stage == v1alpha1.StageDrain
			})
		})
	until = until.Add(replacement)
	return !observed || h.managerStarted(from.Add(-lag), until) || h.hadFault(from.Add(-lateness), until, watchStale)
}

// isSelected returns whether a budget selected the Pod of a removal.
func (h *History) isSelected(budgets map[string]timeline[*policyv1.PodDisruptionBudget], r removal) bool {
	pod, _ := r.pod.versions.at(r.at - 1)
	return slices.ContainsFunc(slices.Collect(maps.Values(budgets)), func(budget timeline[*policyv1.PodDisruptionBudget]) bool {
		return alwaysSelects(budget, pod, h.Workload.Clock.Before(r.Requested), r.at)
	})
}

// orderRespected considers Pods that were on a Node when its drain began, and whose verdicts did not change since. Nodes whose Machine has
// a drain timeout are not considered: its final eviction attempt disregards the order. Pods that terminate on an unreachable Node do not
// count.
func orderRespected(h *History) []string {
	v := h.verdicts()
	lives := h.Workload.lives()
	nodes := timelines[*corev1.Node](&h.Workload, nodeKeys)
	limited := h.machinesWithTimeout()
	var found []string
	for _, r := range h.carriedOut() {
		node, _ := r.pod.boundSince()
		start, draining := v.drainStart(node)
		if !draining || limited[node] || !v.servesMachine(node, start, r.at) {
			continue
		}
		begin := h.Workload.Clock.timeOf(start).Add(-lag)
		order, known := v.constantOrder(r.pod, begin, r.Requested)
		if !known {
			continue
		}
		for _, other := range lives {
			otherNode, bound := other.boundSince()
			if otherNode != node || bound > start || !other.livesAt(r.at) {
				continue
			}
			if other.terminatingSince() < r.at && wasUnreachable(nodes[node], h.Workload.Clock.Before(r.Requested.Add(-appearance)), r.at) {
				continue
			}
			if lower, known := v.constantOrder(other, begin, r.Requested); known && lower < order {
				found = append(found, fmt.Sprintf("%s: drain order %d, while Pod %s with drain order %d was on Node %s", r, order, other.name, lower, node))
			}
		}
	}
	return found
}

// livesAt returns whether a Pod that is not of a DaemonSet was there at a revision and had not completed.
func (p *podLife) livesAt(revision int64) bool {
	return p.goneSince() > revision && !isFinishedAt(p, revision) && !isOfDaemonSet(p.first())
}

// timeOf returns a time at or before which a revision was stored.
func (c Clock) timeOf(revision int64) time.Time {
	for _, sample := range c {
		if sample.Revision >= revision {
			return sample.From
		}
	}
	return time.Time{}
}

// constantOrder returns the drain order of a Pod that had the same verdict, Drain, in a whole period.
func (v *verdicts) constantOrder(pod *podLife, from, until time.Time) (order int32, known bool) {
	all := v.between(pod, from, until)
	if len(all) != 1 || all[0].protects() {
		return 0, false
	}
	return all[0].order, true
}

func (h *History) machinesWithTimeout() map[string]bool {
	limited := map[string]bool{}
	for _, machine := range timelines[*clusterv1.Machine](&h.Management, machineKeys) {
		for _, version := range machine {
			if version.exists && version.object.Spec.Deletion.NodeDrainTimeoutSeconds != nil {
				limited[version.object.Name] = true
			}
		}
	}
	return limited
}

// obsolete is how long Cluster API may act on a Machine that no longer exists.
const obsolete = 5 * time.Second

// coreDoesNotEvict allows Cluster API to drain only the Nodes of Machines whose hook another actor removed. It evicts by name, without the
// UID, and so may evict a Pod that has replaced one of such a Node.
func coreDoesNotEvict(h *History) []string {
	lives := h.Workload.lives()
	machines := timelines[*clusterv1.Machine](&h.Management, machineKeys)
	var found []string
	for _, event := range h.Workload.Audit.WithUserAgent(fleet.CoreAgent).Resource("pods", "eviction", "").Verb("create", "delete").Succeeded() {
		pod := lives[event.UIDPrecondition()]
		if pod == nil {
			pod = named(lives, event.Namespace+"/"+event.Name, h.Workload.Clock.Before(event.Requested))
		}
		if pod == nil {
			continue
		}
		since := h.Workload.Clock.Before(event.Requested.Add(-lag))
		begin, end := h.Management.Clock.Before(event.Requested.Add(-obsolete)), h.Management.Clock.After(event.Answered)
		allowed := slices.ContainsFunc(slices.Collect(maps.Values(lives)), func(other *podLife) bool {
			node, _ := other.boundSince()
			unhooked := h.Unhooked[node] || slices.ContainsFunc(machines[h.Namespace+"/"+node].during(begin, end), isMovedAway)
			return other.name == pod.name && unhooked && other.goneSince() > since
		})
		if !allowed {
			found = append(found, event.String())
		}
	}
	return found
}

// isMovedAway reports whether clusterctl is deleting a Machine that it has moved to another management cluster. It has replaced all
// annotations of the Machine, our hook included.
func isMovedAway(machine stored[*clusterv1.Machine]) bool {
	return machine.exists && metav1.HasAnnotation(machine.object.ObjectMeta, "clusterctl.cluster.x-k8s.io/delete-for-move")
}

// nodesRestored checks each Node from the version in which our manager records its state to the one in which it removes the record. A Node
// that another actor makes schedulable in between becomes schedulable.
func nodesRestored(h *History) []string {
	var found []string
	for name, versions := range timelines[*corev1.Node](&h.Workload, nodeKeys) {
		cordonedBefore, recorded := false, false
		for i, version := range versions {
			if !version.exists {
				recorded = false
				continue
			}
			_, has := version.object.Annotations[v1alpha1.NodeOriginAnnotation]
			switch {
			case has && !recorded:
				cordonedBefore = i > 0 && versions[i-1].exists && versions[i-1].object.Spec.Unschedulable
			case has:
				cordonedBefore = cordonedBefore && version.object.Spec.Unschedulable
			case !has && recorded && version.object.Spec.Unschedulable != cordonedBefore:
				found = append(found, fmt.Sprintf("Node %s was unschedulable=%t before its maintenance and unschedulable=%t after it (revision %d)", name, cordonedBefore,
					!cordonedBefore, version.revision))
			}
			recorded = has
		}
	}
	return found
}

// surgesRestored checks that the number of replicas after each surge is that before it. Faults do not scale Deployments.
func surgesRestored(h *History) []string {
	var found []string
	for name, versions := range timelines[*appsv1.Deployment](&h.Workload, deploymentKeys) {
		declared, surging := int32(-1), false
		for _, version := range versions {
			if !version.exists {
				surging, declared = false, -1
				continue
			}
			_, has := version.object.Annotations[v1alpha1.SurgeAnnotation]
			replicas := *version.object.Spec.Replicas
			switch {
			case !has && surging && declared >= 0 && replicas != declared:
				found = append(found, fmt.Sprintf("Deployment %s had %d replicas before a surge and %d after it (revision %d)", name, declared, replicas, version.revision))
			case !has && !surging && declared >= 0 && replicas != declared:
				found = append(found, fmt.Sprintf("Deployment %s was scaled from %d to %d replicas without a record (revision %d)", name, declared, replicas,
					version.revision))
			}
			if !has {
				declared = replicas
			}
			surging = has
		}
	}
	return found
}

func isOfDaemonSet(object client.Object) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == "DaemonSet"
}

// isFinishedAt returns whether the Pod had completed by a revision.
func isFinishedAt(pod *podLife, revision int64) bool {
	version, exists := pod.versions.at(revision)
	return exists && (version.Status.Phase == corev1.PodSucceeded || version.Status.Phase == corev1.PodFailed)
}
