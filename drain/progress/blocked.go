package progress

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// maxBlocked is the maximum number of blocked Pods that are listed for each Node.
	maxBlocked = 5
	// maxFinalizers is the maximum number of finalizers of an Evacuation that are named.
	maxFinalizers = 5
	// overdue is how long after its grace period a terminating Pod is reported as overdue.
	overdue = time.Second
)

// Pod is a Pod on a Node that is being drained.
type Pod struct {
	Namespace, Name string
	Verdict         rules.Verdict
	Finished        bool
	// Stays means that the drain skips the Pod. Only Left asks for it.
	Stays bool
	// Deletion is the end of its grace period, nil if the Pod is not being deleted.
	Deletion *metav1.Time
	// Evacuation is nil if the Pod has none.
	Evacuation *v1alpha1.Evacuation
	// Refused is the error of the creation of its Evacuation, or of the request that adds NodeMaintenances as an instigator. Nil: neither was
	// refused.
	Refused error
	// NotDeleted is the error of its deletion before the drain timeout, nil if it was deleted or the deletion is not due.
	NotDeleted error
	// Returned is the time of the first eviction of a Pod that it replaces on the cordoned Node. Nil: it
	// replaces no Pod.
	Returned *metav1.Time
	// Shortage says that it is deleted too late for its grace period, see draintimeout.Drain.Shortage.
	Shortage string
}

// Blocked returns the blocked Pods of a Node with the reasons, those that wait longest first.
func Blocked(pods []Pod, drainStart metav1.Time, now time.Time) []v1alpha1.BlockedPod {
	var blocked []v1alpha1.BlockedPod
	for _, pod := range pods {
		if why, since := pod.blocked(drainStart, now); why != "" {
			blocked = append(blocked, v1alpha1.BlockedPod{Pod: pod.Namespace + "/" + pod.Name, Reason: pod.reason(), Why: text.Cut(why, text.MaxMessage), Since: &since})
		}
	}
	slices.SortStableFunc(blocked, func(a, b v1alpha1.BlockedPod) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.Pod, b.Pod))
	})
	return blocked[:min(len(blocked), maxBlocked)]
}

// NextOverdue returns when the next terminating Pod becomes overdue, from when on Blocked reports it. It is zero if no Pod will. No event
// reports that time.
func NextOverdue(pods []Pod, now time.Time) time.Time {
	var first time.Time
	for _, pod := range pods {
		if pod.Deletion == nil {
			continue
		}
		at := pod.overdueAt().Add(time.Millisecond)
		if !pod.isBlocked(now) && pod.isBlocked(at) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

func (p Pod) overdueAt() time.Time { return p.Deletion.Add(overdue) }

func (p Pod) isBlocked(now time.Time) bool {
	why, _ := p.blocked(metav1.Time{}, now)
	return why != ""
}

// blocked returns what blocks a Pod, and since when. why is empty if nothing does. It warns about the deletion of a Pod that waits.
func (p Pod) blocked(drainStart metav1.Time, now time.Time) (why string, since metav1.Time) {
	why, since = p.waits(drainStart, now)
	switch {
	case p.Shortage == "" || p.Finished || p.Deletion != nil:
		return why, since
	case why != "":
		return strings.TrimSuffix(why, ".") + ". " + p.Shortage, since
	case p.Evacuation == nil:
		return p.Shortage, drainStart
	default: // it is evicted
		return "", since
	}
}

// waits returns what a Pod waits for, and since when. why is empty if it waits for nothing.
func (p Pod) waits(drainStart metav1.Time, now time.Time) (why string, since metav1.Time) {
	switch {
	case p.Finished:
		return "", since
	case p.Verdict.Undecided != "":
		return "Cannot evaluate drain rules: " + p.Verdict.Undecided, drainStart
	case p.Verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted:
		return "Waiting for completion (" + p.Verdict.Reason + ")", drainStart
	case p.Verdict.Behavior != v1alpha1.DrainBehaviorDrain:
		return "", since
	case p.Deletion != nil && now.After(p.overdueAt()):
		return "Still terminating after the grace period; check the kubelet and the finalizers of the Pod", *p.Deletion
	case p.Deletion == nil && p.refusal() != "":
		return p.refusal(), drainStart
	case p.Deletion != nil || p.Evacuation == nil:
		return "", since
	case p.isCancelled():
		return "The Evacuation was cancelled and cannot be created again until its finalizers are removed: " + text.List(p.Evacuation.Finalizers, maxFinalizers),
			*p.Evacuation.DeletionTimestamp
	case p.Returned != nil:
		return p.Evacuation.Status.Message, *p.Returned
	default:
		return messageOf(p.Evacuation), p.Evacuation.CreationTimestamp
	}
}

// refusal says which request of the drain the API server refuses. It is empty if it refuses none.
func (p Pod) refusal() string {
	switch {
	case p.NotDeleted != nil:
		return "Cannot delete the Pod before the drain timeout: " + Describe(p.NotDeleted)
	case p.Refused != nil && p.Evacuation != nil:
		return "Cannot become an instigator of the existing Evacuation: " + Describe(p.Refused)
	case p.Refused != nil:
		return "Cannot create the Evacuation: " + Describe(p.Refused)
	default:
		return ""
	}
}

// isCancelled reports whether the Evacuation was cancelled and only finalizers of other actors keep it. A deleted Evacuation with an
// instigator continues, and so does one whose evacuator does not allow its cancellation.
func (p Pod) isCancelled() bool {
	e := p.Evacuation
	return e != nil && e.DeletionTimestamp != nil && len(evacuation.Instigators(e)) == 0 && e.Status.EvacuationCancellationPolicy != v1alpha1.CancellationForbid
}

// messageOf returns what the Evacuation waits for. If it is the eviction, it also returns why no surge replaces the Pod: the eviction may
// wait for a PodDisruptionBudget for as long as the drain lasts.
func messageOf(e *v1alpha1.Evacuation) string {
	refused, found := surge.RefusedIn(e)
	if !found || refused.Refusal == surge.NotRequested || e.Status.Message == "" || e.Status.Message == refused.Message {
		return e.Status.Message
	}
	return strings.TrimSuffix(e.Status.Message, ".") + ". No surge: " + strings.TrimSuffix(refused.Message, ".")
}

// reason returns the reason of the condition Evicting, for programs.
func (p Pod) reason() string {
	if p.Evacuation == nil || p.isCancelled() || p.Verdict.Undecided != "" || p.Verdict.Behavior != v1alpha1.DrainBehaviorDrain || p.Deletion != nil {
		return ""
	}
	if evicting := meta.FindStatusCondition(p.Evacuation.Status.Conditions, v1alpha1.EvacuationEvicting); evicting != nil {
		return evicting.Reason
	}
	return ""
}
