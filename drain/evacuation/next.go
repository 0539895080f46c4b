package evacuation

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

const (
	// EvictionMargin is the time before the drain timeout that is reserved for the eviction of a Pod, in addition to the
	// termination grace period of the Pod. No evacuator is active during it. The eviction may need several attempts: the budget
	// may not allow a disruption immediately.
	EvictionMargin = 30 * time.Second

	// ClockSkew is the tolerated difference between the clock of the workload cluster and ours: how far in the future a progress timestamp
	// may be.
	ClockSkew = 30 * time.Second

	// MaxDeferral is the longest time between two evictions of replacements, see package replacements.
	MaxDeferral = 5 * time.Minute

	// ReportTermination is how long a Pod terminates before the status says so. Most Pods terminate earlier, which saves the write.
	ReportTermination = time.Minute

	// AwaitCollectionFor is how long the garbage collector may take to delete the Evacuation of a deleted Pod. It normally takes milliseconds;
	// it does not run everywhere, and starts half a minute after the CRD has been created.
	AwaitCollectionFor = 5 * time.Second
)

// Reasons of the condition Evicting of Evacuations, in addition to those of v1alpha1.
const (
	// ReasonDrainEndsSoon means that the Pod is evicted because the time until the drain timeout is too short for evacuators.
	ReasonDrainEndsSoon = "DrainEndsSoon"
	// ReasonPodTypeNeverEvicted is the reason of Evicting=False: no evacuator is left, but Pods of DaemonSets and mirror Pods of static Pods
	// are never evicted.
	ReasonPodTypeNeverEvicted = "PodTypeNeverEvicted"
)

// Reasons of AwaitTermination that are no reasons of conditions.
const (
	// ReasonPodTerminating means that the Pod is terminating.
	ReasonPodTerminating = "PodTerminating"
	// ReasonPodStillTerminating means that the Pod has been terminating for longer than ReportTermination.
	ReasonPodStillTerminating = "PodStillTerminating"
)

// Input is the input of Next, which does not change it.
type Input struct {
	Evacuation *v1alpha1.Evacuation
	Pod        Pod
	// ResolvedEvacuators is what Resolve returned for the Pod. Next uses it if spec.evacuators is empty and the eviction has not
	// been decided yet.
	ResolvedEvacuators []v1alpha1.Evacuator
	// Unserved are the built-in evacuators that do not serve the Pod.
	Unserved []string
	// Later are evacuators that count although spec.evacuators may not list them: NodeMaintenances have requested them after the Evacuation
	// was created, or one of them is active.
	Later []v1alpha1.Evacuator
	// Last is the class of the evacuator that is the last one of the Pod, also if spec.evacuators does not list it, because nothing else
	// removes the Pod. It never gives up. Empty: the Pod is evicted if no evacuator is left.
	Last string
	// Limits that NodeMaintenances impose. Nil: no limits.
	Limits *Limits
	// DrainEnds is when the drain times out. Nil: never.
	DrainEnds *time.Time
	// Suspended is true if no instigator drains the Pod now, see Terms.DefersEvacuation.
	Suspended bool
	// TerminatingSince is when the deletion of a terminating Pod was requested.
	TerminatingSince time.Time
	// GoneSince is when the Pod was first observed not to exist. Zero: Next does not wait for the garbage collector.
	GoneSince time.Time
	Now       time.Time
}

// Next returns the next action for an Evacuation. It is a pure function of its input; see the diagram in the package comment.
func Next(in Input) Action {
	switch {
	case in.Pod.gone():
		return end(in)
	case withdrawn(in.Evacuation) && !forbidden(in.Evacuation):
		// Before AwaitPod: a cancelled Evacuation does not have its Pod watched.
		return cancel(in.Evacuation)
	case !in.Pod.Known:
		return Action{Kind: AwaitPod, Message: "The Pod has not been observed yet."}
	case in.Pod.Terminating:
		return awaitTermination(in)
	case in.Suspended:
		return Action{
			Kind: AwaitResume,
			Message: "No NodeMaintenance drains the Pod: its NodeMaintenance ends, its Machine is paused, hooks of other owners hold its drain, its drain has not " +
				"been continued after a pause, a restart of the manager or clusterctl move, or another NodeMaintenance of its Node waits for the Pod to complete or " +
				"cannot evaluate its drain rules.",
		}
	}
	if until := deferredUntil(in); in.Now.Before(until) {
		return awaitBackoff(in.Pod, until)
	}
	action := withinDrain(in, evacuate(in))
	if withdrawn(in.Evacuation) {
		action.Message = "All instigators have withdrawn, but the active evacuator does not allow cancellation. " + action.Message
	}
	return action
}

// deferredUntil returns the time before which the Pod is not evacuated, see v1alpha1.EvacuateAfterAnnotation. The annotation is
// untrusted: it defers for MaxDeferral at most.
func deferredUntil(in Input) time.Time {
	e := in.Evacuation
	until, err := time.Parse(time.RFC3339, e.Annotations[v1alpha1.EvacuateAfterAnnotation])
	if err != nil {
		return time.Time{}
	}
	if latest := e.CreationTimestamp.Add(MaxDeferral + ClockSkew); latest.Before(until) {
		until = latest
	}
	if in.DrainEnds != nil {
		until = AdvanceDeferral(until, e.CreationTimestamp, lastEviction(in))
	}
	return until
}

// AdvanceDeferral returns the earlier of until and last, the time of the final eviction attempt before the drain timeout. A Pod that was
// created shortly before last, or later, has no final attempt: its replacements would have one, too.
func AdvanceDeferral(until time.Time, created metav1.Time, last time.Time) time.Time {
	if last.Before(until) && created.Add(ClockSkew).Before(last) {
		return last
	}
	return until
}

func awaitBackoff(pod Pod, until time.Time) Action {
	return Action{
		Kind: AwaitBackoff, Deadline: until, Reason: v1alpha1.ReasonReplacementReturned,
		Message: fmt.Sprintf("A replacement of %s returned to cordoned Node %s; waiting until %s to evict it. "+
			"Change its tolerations, node affinity or nodeName so that it runs on other Nodes, or add a drain rule with behavior Skip.",
			pod.Controller, pod.Node, until.UTC().Format(time.RFC3339)),
	}
}

// lastEviction returns the time after which only the eviction of the Pod can complete before the drain timeout.
func lastEviction(in Input) time.Time {
	return in.DrainEnds.Add(-EvictionMargin - in.Pod.GracePeriod)
}

// withinDrain ends the time of evacuators before EvictionMargin and the grace period of the Pod begin. It does not limit the
// evacuators of a Pod that is never evicted.
func withinDrain(in Input, action Action) Action {
	takesTime := action.Kind == ResolveEvacuators || action.Kind == Activate || action.Kind == AwaitEvacuator
	if in.DrainEnds == nil || !in.Pod.evictable() || !takesTime {
		return action
	}
	last := lastEviction(in)
	if !in.Now.Before(last) {
		return in.exhausted(ReasonDrainEndsSoon,
			fmt.Sprintf("The drain times out at %s, too soon for evacuators", in.DrainEnds.UTC().Format(time.RFC3339)))
	}
	if last.Before(action.Deadline) {
		action.Deadline = last
	}
	return action
}

// awaitTermination waits for a Pod that is terminating.
func awaitTermination(in Input) Action {
	since := in.TerminatingSince
	if reportAt := since.Add(ReportTermination); since.IsZero() || in.Now.Before(reportAt) {
		action := Action{Kind: AwaitTermination, Reason: ReasonPodTerminating, Message: "The Pod is terminating."}
		if !since.IsZero() {
			action.Deadline = reportAt
		}
		return action
	}
	return Action{
		Kind: AwaitTermination, Reason: ReasonPodStillTerminating,
		Message: fmt.Sprintf("The Pod has been terminating since %s.", since.UTC().Format(time.RFC3339)),
	}
}

// end ends an Evacuation whose Pod has been deleted or has finished. The garbage collector deletes the Evacuation of a deleted Pod, so end
// does not delete it as well, unless the garbage collector takes too long.
func end(in Input) Action {
	e := in.Evacuation
	if collectBy := in.GoneSince.Add(AwaitCollectionFor); isCollected(e) && !in.Pod.Exists && in.Now.Before(collectBy) {
		return Action{Kind: AwaitCollection, Deadline: collectBy, Message: "Waiting for the garbage collector to delete the Evacuation of the deleted Pod."}
	}
	action := Action{Kind: Finish, Delete: e.DeletionTimestamp == nil, Message: "The Pod no longer exists."}
	switch {
	case in.Pod.Exists:
		action.Message = "The Pod has finished."
	case e.DeletionTimestamp == nil && !PodWasObserved(e):
		action.Kind, action.Reason = Fail, v1alpha1.ReasonPodNotFound
		action.Message = fmt.Sprintf("There is no Pod %s with the UID %s.", quote(e.Spec.PodRef.Name), quote(e.Spec.PodRef.UID))
	}
	if !action.Delete && !slices.ContainsFunc(e.Finalizers, isInstigator) && !forbidden(e) {
		return Action{Kind: Done, Message: action.Message}
	}
	return action
}

// cancel ends an Evacuation that all instigators have withdrawn from while its Pod still runs.
func cancel(e *v1alpha1.Evacuation) Action {
	if e.DeletionTimestamp != nil {
		return Action{Kind: Done, Message: "The Evacuation is cancelled."}
	}
	return Action{Kind: Cancel, Delete: true, Message: "All instigators have withdrawn."}
}

// evacuate returns the action that follows from the evacuators: resolve, activate or await one, or evict the Pod if none is left.
func evacuate(in Input) Action {
	e := in.Evacuation
	if IsUnresolved(e) && len(in.ResolvedEvacuators) > 0 {
		return Action{Kind: ResolveEvacuators, Evacuators: cloneEvacuators(in.ResolvedEvacuators), Message: "The evacuators of the Pod are known."}
	}
	evacuators := in.evacuators()
	if e.Status.ActiveEvacuatorClass == nil {
		if len(evacuators) == 0 || in.isDecided() {
			return in.exhausted(v1alpha1.ReasonNoEvacuator, "The Pod has no evacuator")
		}
		if first := in.next(evacuators); first != "" {
			return activate(in, first, "", "The evacuation begins")
		}
		if in.Limits == nil {
			return in.exhausted(v1alpha1.ReasonNoEvacuator, "No evacuator in the spec serves the Pod")
		}
		return in.exhausted(v1alpha1.ReasonEvacuatorNotAllowed, "A NodeMaintenance allows only built-in evacuators, and none of them supports the Pod")
	}
	class := *e.Status.ActiveEvacuatorClass
	position := slices.IndexFunc(evacuators, func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == class })
	if position < 0 {
		// Only a write by another actor can cause this. Starting again with the first evacuator would let it block the Pod forever.
		return in.exhausted(v1alpha1.ReasonNoEvacuator, fmt.Sprintf("Evacuator %s is not among spec.evacuators", quote(class)))
	}
	reason, why := v1alpha1.ReasonEvacuatorCompleted, fmt.Sprintf("Evacuator %s has completed, but the Pod still exists", class)
	switch {
	case e.Status.ActiveEvacuatorCompleted:
	case slices.Contains(in.Unserved, class):
		reason, why = v1alpha1.ReasonNoEvacuator, fmt.Sprintf("Built-in evacuator %s does not serve the Pod", class)
	case !in.Limits.allow(class):
		reason, why = v1alpha1.ReasonEvacuatorNotAllowed, fmt.Sprintf("A NodeMaintenance allows only built-in evacuators, and evacuator %s is not built in", class)
	default:
		deadline := progress(e, in.Now).Add(progressDeadline(in))
		if in.Now.Before(deadline) {
			return Action{Kind: AwaitEvacuator, Class: class, Deadline: deadline, Message: fmt.Sprintf("Evacuator %s is active.", class)}
		}
		reason, why = v1alpha1.ReasonEvacuatorUnresponsive, fmt.Sprintf("Evacuator %s has made no progress for %s", class, progressDeadline(in))
	}
	if next := in.next(evacuators[position+1:]); next != "" {
		return activate(in, next, reason, why)
	}
	return in.exhausted(reason, why+", and no evacuator is left")
}

// next returns the class of the first of the evacuators that may be activated, or "".
func (in Input) next(evacuators []v1alpha1.Evacuator) string {
	for _, evacuator := range evacuators {
		if class := evacuator.EvacuatorClass; in.Limits.allow(class) && !slices.Contains(in.Unserved, class) {
			return class
		}
	}
	return ""
}

// Reached reports whether an evacuator is the active one of an Evacuation, or precedes the active one in spec.evacuators by its priority.
func Reached(e *v1alpha1.Evacuation, class string) bool {
	active := e.ActiveEvacuator()
	if active == "" || active == class {
		return active == class
	}
	ordered := inOrder(e.Spec.Evacuators)
	position := func(class string) int {
		return slices.IndexFunc(ordered, func(evacuator v1alpha1.Evacuator) bool { return evacuator.EvacuatorClass == class })
	}
	at := position(class)
	return at >= 0 && at < position(active)
}

func activate(in Input, class, reason, why string) Action {
	return Action{
		Kind:     Activate,
		Class:    class,
		Deadline: in.Now.Add(progressDeadline(in)),
		Reason:   reason,
		Message:  fmt.Sprintf("%s. Evacuator %s is active.", why, class),
	}
}

// exhausted returns the action when no evacuator is left: evict the Pod, or wait for a Pod that must not be evicted. If another actor has
// marked Last as completed, it is activated again.
func (in Input) exhausted(reason, why string) Action {
	switch {
	case in.Pod.evictable():
		return Action{Kind: Evict, Reason: reason, Message: why + ". Evicting the Pod."}
	case in.Last != "" && in.Limits.allow(in.Last) && !in.Evacuation.IsAssignedTo(in.Last):
		return activate(in, in.Last, reason, why)
	default:
		return Action{
			Kind:    AwaitTermination,
			Reason:  ReasonPodTypeNeverEvicted,
			Message: fmt.Sprintf("%s. Pods of type %s are never evicted.", why, in.Pod.Type),
		}
	}
}

// evacuators returns the evacuators of the Pod in order, up to Last.
func (in Input) evacuators() []v1alpha1.Evacuator {
	ordered := inOrder(WithLater(in.Evacuation.Spec.Evacuators, in.Later))
	if in.Last == "" {
		return ordered
	}
	last := v1alpha1.Evacuator{EvacuatorClass: in.Last}
	before := slices.IndexFunc(append(ordered, last), func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == in.Last })
	return append(ordered[:before], last)
}

// progress returns when the active evacuator has last made progress.
func progress(e *v1alpha1.Evacuation, now time.Time) time.Time {
	last := e.CreationTimestamp.Time
	if e.Status.EvacuationProgressTimestamp != nil {
		last = e.Status.EvacuationProgressTimestamp.Time
	}
	if inFuture(last, now) {
		return now
	}
	return last
}

// RenewAt returns when an evacuator that waits reports progress again, by the time of its last report and its progress deadline: after a
// quarter of the time between them. Without another report it would miss the deadline; more reports would take many writes.
func RenewAt(progress, deadline time.Time) time.Time {
	return progress.Add(deadline.Sub(progress) / 4)
}

func inFuture(t, now time.Time) bool { return t.After(now.Add(ClockSkew)) }

func progressDeadline(in Input) time.Duration {
	deadline := v1alpha1.DefaultProgressDeadlineSeconds * time.Second
	if in.Evacuation.Spec.ProgressDeadlineSeconds > 0 {
		deadline = time.Duration(in.Evacuation.Spec.ProgressDeadlineSeconds) * time.Second
	}
	if in.Limits != nil && in.Limits.ProgressDeadline > 0 {
		deadline = min(deadline, in.Limits.ProgressDeadline)
	}
	return deadline
}

// IsUnresolved reports whether the evacuators of the Pod are still to be resolved.
func IsUnresolved(e *v1alpha1.Evacuation) bool { return undecided(e) && len(e.Spec.Evacuators) == 0 }

// isDecided reports whether the eviction without an evacuator has been decided, and no evacuator is requested since.
func (in Input) isDecided() bool {
	return in.Evacuation.Status.ActiveEvacuatorCompleted && len(in.Later) == 0
}

// undecided reports whether no evacuator has been activated yet, and eviction without evacuators has not been decided either.
func undecided(e *v1alpha1.Evacuation) bool {
	return e.Status.ActiveEvacuatorClass == nil && !e.Status.ActiveEvacuatorCompleted
}

// PodWasObserved reports whether the Pod has been observed: the Evacuation has its ownerReference, see Adopt, or a status. All actions but
// Fail set the status for an observed Pod only.
func PodWasObserved(e *v1alpha1.Evacuation) bool {
	return ownedByPod(e) || !undecided(e) || e.Status.Message != "" || len(e.Status.Conditions) > 0
}

func ownedByPod(e *v1alpha1.Evacuation) bool {
	return slices.ContainsFunc(e.OwnerReferences, func(owner metav1.OwnerReference) bool { return string(owner.UID) == e.Spec.PodRef.UID })
}

// isCollected reports whether the garbage collector deletes the Evacuation after its Pod: the Pod is the only owner.
func isCollected(e *v1alpha1.Evacuation) bool {
	return e.DeletionTimestamp == nil && len(e.OwnerReferences) == 1 && ownedByPod(e) && !forbidden(e)
}

func withdrawn(e *v1alpha1.Evacuation) bool { return len(Instigators(e)) == 0 }

// forbidden reports whether an evacuator does not allow cancellation. Such an Evacuation continues as if no instigator had withdrawn:
// the remaining evacuators are activated, progress deadlines apply, and the Pod is evicted when no evacuator is left.
func forbidden(e *v1alpha1.Evacuation) bool {
	return e.Status.EvacuationCancellationPolicy == v1alpha1.CancellationForbid
}
