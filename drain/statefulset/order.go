package statefulset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Observation is all that Decide looks at. It is not changed.
type Observation struct {
	// Set is the StatefulSet, nil if it is gone.
	Set *appsv1.StatefulSet
	// Pods of the StatefulSet, read after it.
	Pods []corev1.Pod
	// Waiting are the Pods whose Evacuations are ours to carry out now.
	Waiting []Waiting
	// Evicting says since when the Pods that had their turn are being evicted. They do not terminate yet.
	Evicting map[types.UID]time.Time
	// FirstDrain is when the first of the workload cluster's drains in progress began.
	FirstDrain time.Time
	Now        time.Time
}

// Waiting is a Pod that is to be evicted.
type Waiting struct {
	Name string
	UID  types.UID
	// Progress is when something was last reported, Deadline when our turn is over, Message what was reported.
	Progress, Deadline time.Time
	Message            string
	// DrainStart is when the drain of the Pod's Node began.
	DrainStart time.Time
	// Unordered: the maintenances of the Node do not ask for an order.
	Unordered bool
}

// Decision is whose turn it is.
type Decision struct {
	Reports []Report
	// LookAgain is when to decide again if nothing happens before. Zero: whenever something happens.
	LookAgain time.Time
}

// Report is what the Evacuation of a Pod is told.
type Report struct {
	Pod types.UID
	// Reason why the Pod waits, one of the condition v1alpha1.EvacuationOrdered. Empty: its turn has come, and it is evicted.
	Reason  string
	Message string
}

const (
	// Courtesy is how long a Pod waits for one replica at most: from the eviction of that replica until its replacement is ready.
	Courtesy = 3 * time.Minute
	// recreateTime is how long a Pod waits for a replica that does not exist: the StatefulSet controller recreates at once what was
	// evicted, unless something prevents it.
	recreateTime = 10 * time.Second
	// overlap is how long before a drain a replica may have been evicted by another drain, and still be waited for.
	overlap = 30 * time.Second
	// pace is how often the StatefulSet is looked at while Pods wait for one to come back on a Node that isn't watched.
	pace = 2 * time.Second
	// gatherTime is how long the Pods of a Node have to be asked for: their Evacuations are made side by side, in any order.
	gatherTime = 3 * time.Second
	// renewShare of its progress deadline is how long a Pod that waits isn't told of the progress of others.
	renewShare = 0.25
	// maxConditions is the limit of the API, see v1alpha1.EvacuationStatus.
	maxConditions = 32
)

// SetOf returns the name of the StatefulSet that controls a Pod, "" if none does.
func SetOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "StatefulSet" || !strings.HasPrefix(owner.APIVersion, appsv1.GroupName+"/") {
		return ""
	}
	return owner.Name
}

// Ordered says whether the Pods of a StatefulSet leave in order. It takes its Pods to decide then.
func Ordered(set *appsv1.StatefulSet) bool {
	return set != nil && set.DeletionTimestamp == nil &&
		set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
}

// Decide says which Pod is evicted now, and has the others wait.
func Decide(o Observation) Decision {
	if len(o.Waiting) == 0 {
		return Decision{}
	}
	if !Ordered(o.Set) {
		return Decision{Reports: releaseAll(o.Waiting, "The StatefulSet does not ask for an order.")}
	}
	unordered, waiting := o.split()
	d := Decision{Reports: releaseAll(unordered, "The NodeMaintenance does not ask for an order of the Pods of StatefulSets.")}
	if len(waiting) == 0 {
		return d
	}
	next, others := waiting[0], waiting[1:]
	if until := next.Progress.Add(gatherTime); o.Now.Before(until) && o.higherOnNode(next) {
		d.LookAgain = until
		return d
	}
	wait := o.waitOf(next)
	if wait == nil {
		d.Reports = append(d.Reports, releaseAll(waiting[:1], "The Pod is next: it has the highest ordinal.")...)
		d.Reports = append(d.Reports, o.renew(others)...)
		return d
	}
	d.LookAgain = o.Now.Add(pace)
	if wait.until.Before(d.LookAgain) {
		d.LookAgain = wait.until
	}
	if next.Message != wait.message {
		d.Reports = append(d.Reports, Report{Pod: next.UID, Reason: wait.reason, Message: wait.message})
	}
	message := fmt.Sprintf("Waiting for Pods of StatefulSet %s with higher ordinals: they are evicted one at a time.", o.set())
	for _, pod := range others {
		if pod.Message != message {
			d.Reports = append(d.Reports, Report{Pod: pod.UID, Reason: v1alpha1.ReasonWaitingForHigherOrdinals, Message: message})
		}
	}
	return d
}

// split separates the Pods that no order is asked for from the others, which it sorts by descending ordinal.
func (o Observation) split() (unordered, ordered []Waiting) {
	for _, pod := range o.Waiting {
		if pod.Unordered {
			unordered = append(unordered, pod)
		} else {
			ordered = append(ordered, pod)
		}
	}
	slices.SortFunc(ordered, func(a, b Waiting) int {
		return cmp.Or(-cmp.Compare(ordinal(a.Name), ordinal(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return unordered, ordered
}

// higherOnNode says whether a Pod with a higher ordinal is on the same Node, and hasn't had its turn.
func (o Observation) higherOnNode(first Waiting) bool {
	at := slices.IndexFunc(o.Pods, func(pod corev1.Pod) bool { return pod.UID == first.UID })
	return at >= 0 && slices.ContainsFunc(o.Pods, func(pod corev1.Pod) bool {
		_, evicting := o.Evicting[pod.UID]
		return pod.Spec.NodeName == o.Pods[at].Spec.NodeName && ordinal(pod.Name) > ordinal(first.Name) &&
			metav1.IsControlledBy(&pod, o.Set) && pod.DeletionTimestamp == nil && !evicting
	})
}

// wait is a replica that the next Pod waits for.
type wait struct {
	reason, message string
	until           time.Time
}

// waitOf returns the replica that the next Pod to be evicted waits for, the one with the highest ordinal first. Nil: there is none.
func (o Observation) waitOf(next Waiting) *wait {
	var found *wait
	stuck := false // a replica with a lower ordinal is not ready, and not waited for
	for _, r := range o.replicas() {
		if r.pod != nil && r.pod.UID == next.UID {
			stuck = stuck || !rules.Ready(r.pod)
			continue
		}
		if r.pod != nil && o.serves(r.pod) {
			continue
		}
		w := o.waitForReplica(next, r.name, r.pod, stuck)
		if !o.Now.Before(w.until) {
			stuck = true
			continue
		}
		found = &w
	}
	return found
}

// replica is a replica of the StatefulSet. pod is nil if it does not exist.
type replica struct {
	name string
	pod  *corev1.Pod
}

// replicas returns the StatefulSet's Pods by ascending ordinal, and among them the first replica that does not exist: the StatefulSet
// controller creates missing replicas one at a time, in this order. spec.replicas is a tenant's number, so nothing counts up to it.
func (o Observation) replicas() []replica {
	first := 0
	if o.Set.Spec.Ordinals != nil {
		first = int(o.Set.Spec.Ordinals.Start)
	}
	end := first + int(ptr.Deref(o.Set.Spec.Replicas, 1))
	pods := map[int]*corev1.Pod{}
	for i := range o.Pods {
		pod := &o.Pods[i]
		n := ordinal(pod.Name)
		if metav1.IsControlledBy(pod, o.Set) && pod.Name == o.name(n) && n >= first && n < end {
			pods[n] = pod
		}
	}
	ordinals := slices.Sorted(maps.Keys(pods))
	missing := first
	for _, n := range ordinals {
		if n == missing {
			missing++
		}
	}
	if missing < end {
		ordinals = append(ordinals, missing)
		slices.Sort(ordinals)
	}
	all := make([]replica, 0, len(ordinals))
	for _, n := range ordinals {
		all = append(all, replica{name: o.name(n), pod: pods[n]})
	}
	return all
}

func (o Observation) name(ordinal int) string { return o.Set.Name + "-" + strconv.Itoa(ordinal) }

// serves says whether a replica is ready, and stays. A Pod that terminates may be ready for a while.
func (o Observation) serves(pod *corev1.Pod) bool {
	_, evicting := o.Evicting[pod.UID]
	return pod.DeletionTimestamp == nil && rules.Ready(pod) && !evicting
}

// waitForReplica says until when the next Pod waits for a replica that does not serve; a time that has passed: it doesn't wait. What
// the API shows counts, and nothing is remembered: Courtesy is counted from the eviction, creation or readiness transition of the
// replica. It is also counted from the moment that the next Pod has waited for this replica, so that neither a replica that becomes
// ready and unready in turns nor a timestamp in the future prolongs it.
func (o Observation) waitForReplica(next Waiting, name string, pod *corev1.Pod, stuck bool) wait {
	w := wait{
		reason:  v1alpha1.ReasonWaitingForReplica,
		message: fmt.Sprintf("Waiting at most %s for Pod %s/%s of StatefulSet %s to be replaced and ready.", Courtesy, o.Set.Namespace, name, o.set()),
	}
	waited := next.Message == w.message
	if pod == nil && stuck { // the StatefulSet controller recreates it when those with lower ordinals are ready
		return w
	}
	if pod == nil && !waited {
		w.reason = v1alpha1.ReasonWaitingForMissingReplica
		w.message = fmt.Sprintf("Waiting at most %s for Pod %s/%s of StatefulSet %s to be created.", recreateTime, o.Set.Namespace, name, o.set())
		w.until = o.since(next, w.message).Add(recreateTime)
		return w
	}
	begin := o.since(next, w.message)
	if pod != nil {
		unavailable, causedByDrain := o.unavailableSince(next, pod)
		if !causedByDrain && !waited {
			return w
		}
		if unavailable.Before(begin) {
			begin = unavailable
		}
	}
	w.until = begin.Add(Courtesy)
	return w
}

// since returns when the next Pod was told the message, now if it wasn't.
func (o Observation) since(next Waiting, message string) time.Time {
	if next.Message == message && next.Progress.Before(o.Now) {
		return next.Progress
	}
	return o.Now
}

// unavailableSince returns since when a replica that exists doesn't serve, and whether a drain may be the cause.
func (o Observation) unavailableSince(next Waiting, pod *corev1.Pod) (since time.Time, causedByDrain bool) {
	if pod.DeletionTimestamp != nil {
		since = pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
		return since, o.duringDrain(next, since.Add(time.Second)) // within the second that the drain began, too: deletions are its effect
	}
	if since, evicting := o.Evicting[pod.UID]; evicting {
		return since, true
	}
	since = pod.CreationTimestamp.Time
	if o.duringDrain(next, since) { // it may replace a Pod that was evicted
		return since, true
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			since = condition.LastTransitionTime.Time
		}
	}
	return since, since.After(next.DrainStart)
}

// duringDrain says whether a drain was in progress at a time: that of the next Pod, or another one shortly before. So Machines that are
// deleted one after the other do not have two replicas evicted at once. Times are whole seconds: what happened in the second in which a
// drain began happened before.
func (o Observation) duringDrain(next Waiting, at time.Time) bool {
	return at.After(next.DrainStart) || at.After(o.FirstDrain) && at.After(next.DrainStart.Add(-overlap))
}

func (o Observation) set() string { return o.Set.Namespace + "/" + o.Set.Name }

func releaseAll(pods []Waiting, message string) []Report {
	reports := make([]Report, 0, len(pods))
	for _, pod := range pods {
		reports = append(reports, Report{Pod: pod.UID, Message: message})
	}
	return reports
}

// renew tells the Pods that wait for a long time that there is progress, so that their turn doesn't end in silence.
func (o Observation) renew(pods []Waiting) []Report {
	var reports []Report
	for _, pod := range pods {
		if after := time.Duration(float64(pod.Deadline.Sub(pod.Progress)) * renewShare); !o.Now.Before(pod.Progress.Add(after)) {
			reports = append(reports, Report{Pod: pod.UID, Reason: v1alpha1.ReasonWaitingForHigherOrdinals, Message: pod.Message})
		}
	}
	return reports
}

// ordinal of a Pod of a StatefulSet, -1 where its name has none.
func ordinal(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return -1
	}
	return n
}

// Apply notes the report on the Evacuation.
func (r Report) Apply(e *v1alpha1.Evacuation, now time.Time) {
	reported := metav1.NewTime(now.UTC().Truncate(time.Second)) // as the API server will give it back
	e.Status.Message = r.Message
	e.Status.EvacuationProgressTimestamp = &reported
	if r.Reason == "" {
		e.Status.ActiveEvacuatorCompleted = true
		meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationOrdered)
		return
	}
	if meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationOrdered) == nil && len(e.Status.Conditions) >= maxConditions {
		return // evacuators have filled the list: the API server would refuse one more
	}
	meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{
		Type: v1alpha1.EvacuationOrdered, Status: metav1.ConditionFalse, Reason: r.Reason, Message: r.Message,
		ObservedGeneration: e.Generation, LastTransitionTime: reported,
	})
}

// WaitReason returns why a Pod waits for other Pods of its StatefulSet, "" if its Evacuation doesn't say so.
func WaitReason(e *v1alpha1.Evacuation) string {
	ordered := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationOrdered)
	if ordered == nil || ordered.Status != metav1.ConditionFalse {
		return ""
	}
	switch ordered.Reason {
	case v1alpha1.ReasonWaitingForReplica, v1alpha1.ReasonWaitingForMissingReplica, v1alpha1.ReasonWaitingForHigherOrdinals:
		return ordered.Reason
	}
	return "" // others may write conditions, too
}
