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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Observation is the input of Decide, which does not change it.
type Observation struct {
	// Set is the StatefulSet, nil if it does not exist any more.
	Set *appsv1.StatefulSet
	// Pods are those of the StatefulSet. They must be read after Set.
	Pods []corev1.Pod
	// Waiting lists the Pods in whose Evacuations this evacuator is active.
	Waiting []Waiting
	// Evicting contains the Pods that were released and do not terminate yet, with the time since when they are being evicted.
	Evicting map[types.UID]time.Time
	// Coming contains the Pods that are to be evicted in order, on all Nodes. Those without an Evacuation get one in a moment.
	Coming sets.Set[types.UID]
	// FirstDrain is when the first of the workload cluster's drains in progress began.
	FirstDrain time.Time
	Now        time.Time
}

// Waiting is a Pod that is to be evicted.
type Waiting struct {
	Name string
	UID  types.UID
	// Progress is the time of the last report, Message its text, and RenewAt when it is repeated, see evacuation.RenewAt.
	Progress, RenewAt time.Time
	Message           string
	// DrainStart is when the drain of the Pod's Node began.
	DrainStart time.Time
	// Ordered means that a maintenance of the Node requests an order.
	Ordered bool
}

// Decision contains the Pods that are released and those that wait.
type Decision struct {
	// Reports are stored in this order, but first those on Pods that wait. If one cannot be stored for a moment, those after it are not.
	Reports []Report
	// RequeueAt is the time of the next decision if no event occurs before. If it is zero, only an event triggers the next decision.
	RequeueAt time.Time
}

// Report is the change of the status of a Pod's Evacuation.
type Report struct {
	Pod types.UID
	// Reason is why the Pod waits, a reason of the condition v1alpha1.EvacuationOrdered. If it is empty, the Pod is released to the
	// evictor.
	Reason  string
	Message string
}

const (
	// MaxWait is the maximum time that a Pod waits for one replica: from the eviction of that replica until its replacement is ready.
	MaxWait = 3 * time.Minute
	// recreateTime is how long a Pod waits for a replica that does not exist: the StatefulSet controller recreates an
	// evicted Pod immediately unless something prevents it.
	recreateTime = 10 * time.Second
	// overlap is how long before a drain a replica may have been evicted by another drain, and still be waited for.
	overlap = 30 * time.Second
	// decisionInterval is the interval of decisions while Pods wait for a replacement on a Node whose Pods are not watched.
	decisionInterval = 2 * time.Second
	// gatherTime is how long the first Pod waits for the Evacuations of Pods with higher ordinals: Evacuations are created concurrently, in
	// any order, on all Nodes that are drained together.
	gatherTime = 3 * time.Second
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

// Ordered reports whether the Pods of a StatefulSet are evicted in order. Only then Decide needs its Pods.
func Ordered(set *appsv1.StatefulSet) bool {
	return set != nil && set.DeletionTimestamp == nil &&
		set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
}

// Decide releases the next Pod if it needs to wait for no replica, and returns why the other Pods wait.
func Decide(o Observation) Decision {
	if len(o.Waiting) == 0 {
		return Decision{}
	}
	if !Ordered(o.Set) {
		return Decision{Reports: releaseAll(o.Waiting, "The StatefulSet requires no order.")}
	}
	unordered, waiting := o.split()
	d := Decision{Reports: releaseAll(unordered, "The NodeMaintenance requests no order for the Pods of StatefulSets.")}
	if len(waiting) == 0 {
		return d
	}
	next, others := waiting[0], waiting[1:]
	if until := next.Progress.Add(gatherTime); o.Now.Before(until) && o.higherComing(next) {
		d.RequeueAt = until
		return d
	}
	wait := o.waitOf(next)
	if wait == nil { // reports on the others come first: a Pod whose message is still that of a replica would not wait for this one, see waitOf
		d.Reports = append(d.Reports, o.tell(others)...)
		d.Reports = append(d.Reports, releaseAll(waiting[:1], "The Pod has the highest ordinal of the Pods that wait.")...)
		return d
	}
	d.RequeueAt = o.Now.Add(decisionInterval)
	if wait.until.Before(d.RequeueAt) {
		d.RequeueAt = wait.until
	}
	if next.Message != wait.message {
		d.Reports = append(d.Reports, Report{Pod: next.UID, Reason: wait.reason, Message: wait.message})
	}
	d.Reports = append(d.Reports, o.tell(others)...)
	return d
}

// split separates the Pods without a requested order from the others, which it sorts by descending ordinal.
func (o Observation) split() (unordered, ordered []Waiting) {
	for _, pod := range o.Waiting {
		if pod.Ordered {
			ordered = append(ordered, pod)
		} else {
			unordered = append(unordered, pod)
		}
	}
	slices.SortFunc(ordered, func(a, b Waiting) int {
		return cmp.Or(-cmp.Compare(ordinal(a.Name), ordinal(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return unordered, ordered
}

// higherComing reports whether a Pod with a higher ordinal is to be evicted before the first one, and has not been released yet.
func (o Observation) higherComing(first Waiting) bool {
	return slices.ContainsFunc(o.Pods, func(pod corev1.Pod) bool {
		_, evicting := o.Evicting[pod.UID]
		return o.Coming.Has(pod.UID) && ordinal(pod.Name) > ordinal(first.Name) && metav1.IsControlledBy(&pod, o.Set) && pod.DeletionTimestamp == nil && !evicting
	})
}

// wait is a replica that the next Pod waits for.
type wait struct {
	reason, message string
	until           time.Time
}

// waitOf returns the replica that the next Pod to be evicted waits for, the one with the highest ordinal if there are several. It
// returns nil if the Pod waits for no replica. A Pod that waits for a replica does not wait for one with a higher ordinal again: two
// replicas that stay unavailable, for example because other evacuators report progress on them, would hold it alternately, for ever.
func (o Observation) waitOf(next Waiting) *wait {
	var found *wait
	stuck := false // a replica with a lower ordinal is not ready, and the Pod does not wait for it
	for _, r := range o.replicas() {
		switch {
		case r.pod != nil && r.pod.UID == next.UID:
			stuck = stuck || !rules.Ready(r.pod)
		case r.pod != nil && o.serves(r.pod):
		default:
			if w := o.waitForReplica(next, r.name, r.pod, stuck); o.Now.Before(w.until) {
				found = &w
			} else {
				stuck = true
			}
		}
		if next.Message == o.replaced(r.name) || next.Message == o.created(r.name) {
			break
		}
	}
	return found
}

// replaced and created are the messages of a Pod that waits for a replica.
func (o Observation) replaced(name string) string {
	return fmt.Sprintf("Waiting at most %s for Pod %s/%s of StatefulSet %s to be replaced and ready.", MaxWait, o.Set.Namespace, name, o.set())
}

func (o Observation) created(name string) string {
	return fmt.Sprintf("Waiting at most %s for Pod %s/%s of StatefulSet %s to be created.", recreateTime, o.Set.Namespace, name, o.set())
}

// replica is a replica of the StatefulSet. pod is nil if it does not exist.
type replica struct {
	name string
	pod  *corev1.Pod
}

// replicas returns the StatefulSet's Pods by ascending ordinal, and among them the first replica that does not exist: the StatefulSet
// controller creates missing replicas one at a time, in this order. It does not iterate up to spec.replicas, because a tenant can set any
// number.
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

// serves reports whether a replica is ready and is not being removed. A terminating Pod may be ready for some time.
func (o Observation) serves(pod *corev1.Pod) bool {
	_, evicting := o.Evicting[pod.UID]
	return pod.DeletionTimestamp == nil && rules.Ready(pod) && !evicting
}

// waitForReplica returns the wait of the next Pod for a replica that does not serve. If until is in the past, the Pod does not wait. The
// result follows from the API objects alone: MaxWait counts from the eviction, creation or readiness transition of the
// replica. It also counts from the time at which the next Pod began to wait for this replica, so that neither a replica that
// alternates between ready and unready nor a timestamp in the future prolongs the wait.
func (o Observation) waitForReplica(next Waiting, name string, pod *corev1.Pod, stuck bool) wait {
	w := wait{reason: v1alpha1.ReasonWaitingForReplica, message: o.replaced(name)}
	waited := next.Message == w.message
	if pod == nil && stuck { // the StatefulSet controller recreates it when the replicas with lower ordinals are ready
		return w
	}
	if pod == nil && !waited {
		w.reason, w.message = v1alpha1.ReasonWaitingForMissingReplica, o.created(name)
		w.until = o.since(next, w.message).Add(recreateTime)
		return w
	}
	begin := o.since(next, w.message)
	if pod != nil {
		if rules.Unschedulable(pod) != nil { // it may stay so for as long as the drain lasts: its volume may be local to a cordoned Node
			return w
		}
		unavailable, causedByDrain := o.unavailableSince(next, pod)
		if !causedByDrain && !waited {
			return w
		}
		if unavailable.Before(begin) {
			begin = unavailable
		}
	}
	w.until = begin.Add(MaxWait)
	return w
}

// since returns when the message was reported on the next Pod, or the current time if it was not.
func (o Observation) since(next Waiting, message string) time.Time {
	if next.Message == message && next.Progress.Before(o.Now) {
		return next.Progress
	}
	return o.Now
}

// unavailableSince returns since when an existing replica does not serve, and whether a drain may be the cause.
func (o Observation) unavailableSince(next Waiting, pod *corev1.Pod) (since time.Time, causedByDrain bool) {
	if pod.DeletionTimestamp != nil {
		since = rules.DeletionRequested(pod)
		return since, o.duringDrain(next, since.Add(time.Second)) // a deletion in the second in which the drain began counts as its effect
	}
	if since, evicting := o.Evicting[pod.UID]; evicting {
		return since, true
	}
	since = pod.CreationTimestamp.Time
	if o.duringDrain(next, since) { // it may replace a Pod that was evicted
		return since, true
	}
	if ready := rules.ReadyCondition(pod); ready.Type != "" {
		since = ready.LastTransitionTime.Time
	}
	return since, since.After(next.DrainStart)
}

// duringDrain reports whether a drain was in progress at a time: that of the next Pod, or another one shortly before, so that two
// replicas are not evicted at the same time when Machines are deleted one after the other. Times are whole seconds: an event in the
// second in which a drain began counts as earlier than the drain.
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

// tell reports on Pods that they wait for others with higher ordinals, also if they have waited for a replica before, see waitOf. It
// repeats the report on Pods that wait for a long time, so that their progress deadlines do not expire.
func (o Observation) tell(pods []Waiting) []Report {
	message := fmt.Sprintf("Waiting for Pods of StatefulSet %s with higher ordinals to be evicted: only one is evicted at a time.", o.set())
	var reports []Report
	for _, pod := range pods {
		if pod.Message != message || !o.Now.Before(pod.RenewAt) {
			reports = append(reports, Report{Pod: pod.UID, Reason: v1alpha1.ReasonWaitingForHigherOrdinals, Message: message})
		}
	}
	return reports
}

// ordinal returns the ordinal of a Pod of a StatefulSet, -1 if its name contains none.
func ordinal(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return -1
	}
	return n
}

// Apply writes the report to the status of the Evacuation.
func (r Report) Apply(e *v1alpha1.Evacuation, now time.Time) {
	reported := metav1.NewTime(now.UTC().Truncate(time.Second)) // the precision that the API server stores
	e.Status.Message = r.Message
	e.Status.EvacuationProgressTimestamp = &reported
	if r.Reason == "" {
		e.Status.ActiveEvacuatorCompleted = true
		meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.EvacuationOrdered)
		return
	}
	if meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationOrdered) == nil && len(e.Status.Conditions) >= maxConditions {
		return // the API server would reject one more condition
	}
	meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{
		Type: v1alpha1.EvacuationOrdered, Status: metav1.ConditionFalse, Reason: r.Reason, Message: r.Message,
		ObservedGeneration: e.Generation, LastTransitionTime: reported,
	})
}

// WaitReasons are the reasons of WaitReason.
var WaitReasons = []string{v1alpha1.ReasonWaitingForReplica, v1alpha1.ReasonWaitingForMissingReplica, v1alpha1.ReasonWaitingForHigherOrdinals}

// WaitReason returns why a Pod waits for other Pods of its StatefulSet, "" if its Evacuation does not report that it waits.
func WaitReason(e *v1alpha1.Evacuation) string {
	ordered := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationOrdered)
	if ordered == nil || ordered.Status != metav1.ConditionFalse || !slices.Contains(WaitReasons, ordered.Reason) { // other clients write conditions, too
		return ""
	}
	return ordered.Reason
}
