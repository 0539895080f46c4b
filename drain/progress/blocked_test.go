package progress_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

var (
	drainStart = metav1.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	later      = metav1.NewTime(drainStart.Add(time.Minute))
	drains     = rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
)

func asked(message string, since metav1.Time) *v1alpha1.Evacuation {
	return &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: since}, Status: v1alpha1.EvacuationStatus{Message: message}}
}

func deleted(e *v1alpha1.Evacuation, finalizers ...string) *v1alpha1.Evacuation {
	e.DeletionTimestamp, e.Finalizers = &later, finalizers
	return e
}

func TestBlocked(t *testing.T) {
	now := later.Add(time.Hour)
	for _, tc := range []struct {
		name  string
		pod   progress.Pod
		why   string
		since metav1.Time
	}{
		{
			name: "R34: reports what the Evacuation waits for", pod: progress.Pod{Verdict: drains, Evacuation: asked("waiting for a budget", later)},
			why: "waiting for a budget", since: later,
		},
		{name: "R34: does not report a Pod whose Evacuation has no message", pod: progress.Pod{Verdict: drains, Evacuation: asked("", later)}},
		{name: "R34: does not report a Pod that has no Evacuation yet", pod: progress.Pod{Verdict: drains}},
		{
			name: "R34: does not report a terminating Pod within its grace period",
			pod:  progress.Pod{Verdict: drains, Evacuation: asked("evicted", later), Deletion: new(metav1.NewTime(now))},
		},
		{
			name: "R34: reports a terminating Pod after its grace period", pod: progress.Pod{Verdict: drains, Deletion: &later},
			why: "Still terminating after the grace period; check the kubelet and the finalizers of the Pod", since: later,
		},
		{
			name: "R34: reports a Pod that must complete", pod: progress.Pod{Verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorWaitCompleted, Reason: "label x"}},
			why: "Waiting for completion (label x)", since: drainStart,
		},
		{
			name: "R34: reports a Pod for which the drain rules cannot be evaluated",
			pod:  progress.Pod{Verdict: rules.Verdict{Undecided: "the labels of namespace \"web\" are not known"}},
			why:  "Cannot evaluate drain rules: the labels of namespace \"web\" are not known", since: drainStart,
		},
		{
			name: "R34: reports a Pod that the API server refuses to delete before the drain timeout",
			pod:  progress.Pod{Verdict: drains, Evacuation: asked("waiting for a budget", later), NotDeleted: errors.New("no answer")},
			why:  "Cannot delete the Pod before the drain timeout: no answer. The request is retried; see the log of the manager", since: drainStart,
		},
		{
			name: "R34: names the finalizers for which a cancelled Evacuation waits",
			pod:  progress.Pod{Verdict: drains, Evacuation: deleted(asked("waiting for a budget", later), "example.com/audit", "example.com/x")},
			why:  "The Evacuation was cancelled and cannot be created again until its finalizers are removed: example.com/audit, example.com/x", since: later,
		},
		{
			name: "R34: reports what a deleted Evacuation that has an instigator waits for", since: later, why: "waiting for a budget",
			pod: progress.Pod{Verdict: drains, Evacuation: deleted(asked("waiting for a budget", later), "example.com/x", v1alpha1.NodeMaintenanceInstigatorFinalizer)},
		},
		{
			name: "M13: warns about a Pod that waits and is deleted too late for its grace period",
			pod:  progress.Pod{Verdict: drains, Evacuation: asked("Waiting for a budget.", later), Shortage: "It does not fit"},
			why:  "Waiting for a budget. It does not fit", since: later,
		},
		{name: "M13: warns about a Pod of a later step", pod: progress.Pod{Verdict: drains, Shortage: "It does not fit"}, why: "It does not fit", since: drainStart},
		{name: "M13: does not warn about a Pod that is evicted", pod: progress.Pod{Verdict: drains, Evacuation: asked("", later), Shortage: "It does not fit"}},
		{name: "M13: does not warn about a Pod that terminates", pod: progress.Pod{Verdict: drains, Deletion: new(metav1.NewTime(now)), Shortage: "It does not fit"}},
		{name: "R34: does not report a skipped Pod", pod: progress.Pod{Verdict: rules.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}}},
		{name: "R34: does not report a finished Pod", pod: progress.Pod{Finished: true, Verdict: drains, Evacuation: asked("waiting", later)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			tc.pod.Namespace, tc.pod.Name = "ns", "pod"
			blocked := progress.Blocked([]progress.Pod{tc.pod}, drainStart, now)
			if tc.why == "" {
				g.Expect(blocked).To(BeEmpty())
				return
			}
			g.Expect(blocked).To(Equal([]v1alpha1.BlockedPod{{Pod: "ns/pod", Why: tc.why, Since: &tc.since}}))
		})
	}
}

func TestBlockedWithoutSurge(t *testing.T) {
	refused := surge.Report{Pod: "pod", Refusal: surge.ReplicaFailure, Message: "A new Pod cannot be created: exceeded quota."}
	for _, tc := range []struct{ name, message, why string }{
		{
			"says why a surge has ended while the eviction waits", "Waiting for PodDisruptionBudget ns/web",
			"Waiting for PodDisruptionBudget ns/web. No surge: A new Pod cannot be created: exceeded quota",
		},
		{"says it once", refused.Message, refused.Message},
	} {
		t.Run("E67: "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			e := asked("", later)
			refused.Apply(e, later.Time)
			e.Status.Message = tc.message
			blocked := progress.Blocked([]progress.Pod{{Namespace: "ns", Name: "pod", Verdict: drains, Evacuation: e}}, drainStart, later.Time)
			g.Expect(blocked).To(ConsistOf(HaveField("Why", tc.why)))
		})
	}
}

func TestNextOverdue(t *testing.T) {
	g := NewWithT(t)
	now := later.Time
	terminating := func(after time.Duration, verdict rules.Verdict) progress.Pod {
		return progress.Pod{Namespace: "ns", Name: "pod", Verdict: verdict, Deletion: new(metav1.NewTime(now.Add(after)))}
	}
	first, last := terminating(30*time.Second, drains), terminating(time.Minute, drains)
	pods := []progress.Pod{
		{Verdict: drains}, last, first, terminating(-time.Minute, drains), terminating(time.Second, rules.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}),
		terminating(time.Second, rules.Verdict{Behavior: v1alpha1.DrainBehaviorDrain, Undecided: "the labels are not known"}),
	}
	for _, pod := range []progress.Pod{first, last} {
		at := progress.NextOverdue(pods, now)
		g.Expect(at).To(BeTemporally("~", pod.Deletion.Time, 2*time.Second))
		g.Expect(progress.Blocked([]progress.Pod{pod}, drainStart, at.Add(-time.Millisecond))).To(BeEmpty())
		g.Expect(progress.Blocked([]progress.Pod{pod}, drainStart, at)).To(HaveLen(1), "R34: reports a terminating Pod as soon as it is overdue")
		now = at
	}
	g.Expect(progress.NextOverdue(pods, now)).To(BeZero())
}

func TestBlockedReason(t *testing.T) {
	t.Run("R44: a replacement that returned is named with its reason, since the first eviction of its controller", func(t *testing.T) {
		g := NewWithT(t)
		e := asked("A replacement of Deployment shop/web returned", later)
		meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{
			Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReplacementReturned,
		})
		pod := progress.Pod{Namespace: "ns", Name: "pod", Verdict: drains, Evacuation: e, Returned: &drainStart}
		g.Expect(progress.Blocked([]progress.Pod{pod}, drainStart, later.Add(time.Hour))).To(Equal([]v1alpha1.BlockedPod{
			{Pod: "ns/pod", Reason: v1alpha1.ReasonReplacementReturned, Why: e.Status.Message, Since: &drainStart},
		}))
	})
}

func TestBlockedIsShort(t *testing.T) {
	t.Run("R36: reports the five Pods that wait longest, with shortened messages", func(t *testing.T) {
		g := NewWithT(t)
		var pods []progress.Pod
		for i := range 9 {
			since := metav1.NewTime(drainStart.Add(-time.Duration(i) * time.Minute))
			pods = append(pods, progress.Pod{Namespace: "ns", Name: fmt.Sprint(i), Verdict: drains, Evacuation: asked(strings.Repeat("ä", 600), since)})
		}
		blocked := progress.Blocked(pods, drainStart, later.Time)
		g.Expect(blocked).To(HaveLen(5))
		for i, each := range blocked {
			g.Expect(each.Pod).To(Equal(fmt.Sprintf("ns/%d", 8-i)))
			g.Expect([]rune(each.Why)).To(HaveLen(512))
			g.Expect(each.Why).To(HaveSuffix("ä…"))
		}
	})
}
