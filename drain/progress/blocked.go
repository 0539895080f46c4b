package progress

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

const (
	// maxBlocked is how many Pods that can't go yet are named for each Node.
	maxBlocked = 5
	// overdue is how long after the end of its grace period a Pod that is still there is worth a word.
	overdue = time.Second
)

// Pod is what is known of a Pod on a Node that drains.
type Pod struct {
	Namespace, Name string
	Verdict         rules.Verdict
	Finished        bool
	// Deletion is when its grace period ends, nil while it isn't deleted.
	Deletion *metav1.Time
	// Evacuation that asks it to leave, if there is one.
	Evacuation *v1alpha1.Evacuation
	// Refused is why its Evacuation could not be created, nil if it was not tried or is created.
	Refused error
	// Returned is the time of the first eviction of a Pod that it replaces on the cordoned Node. Nil: it replaces none.
	Returned *metav1.Time
}

// Blocked names the Pods of a Node that can't go yet, with the reasons, those that wait longest first.
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

// blocked says what holds a Pod up, and since when; nothing, if nothing does.
func (p Pod) blocked(drainStart metav1.Time, now time.Time) (why string, since metav1.Time) {
	switch {
	case p.Finished:
		return "", since
	case p.Verdict.Undecided != "":
		return "It can't be decided what to do with it: " + p.Verdict.Undecided, drainStart
	case p.Verdict.Behavior == v1alpha1.DrainBehaviorWaitCompleted:
		return "Waiting for it to complete (" + p.Verdict.Reason + ")", drainStart
	case p.Verdict.Behavior != v1alpha1.DrainBehaviorDrain:
		return "", since
	case p.Deletion != nil && now.After(p.Deletion.Add(overdue)): // the grace period is its own time
		return "Its deletion is overdue", *p.Deletion
	case p.Deletion == nil && p.Refused != nil:
		return "Its Evacuation cannot be created: " + Describe(p.Refused), drainStart
	case p.Deletion != nil || p.Evacuation == nil:
		return "", since
	case p.Returned != nil:
		return p.Evacuation.Status.Message, *p.Returned
	default:
		return p.Evacuation.Status.Message, p.Evacuation.CreationTimestamp
	}
}

// reason is why the Pod is not evicted, for programs.
func (p Pod) reason() string {
	if p.Evacuation == nil || p.Verdict.Undecided != "" || p.Verdict.Behavior != v1alpha1.DrainBehaviorDrain || p.Deletion != nil {
		return ""
	}
	if evicting := meta.FindStatusCondition(p.Evacuation.Status.Conditions, v1alpha1.EvacuationEvicting); evicting != nil {
		return evicting.Reason
	}
	return ""
}
