package evacuation_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestApplyActivate(t *testing.T) { // E11
	g := anEvacuation("a:2", "b:1").turnOf("a", 0).completed().forbidding().evicting("X", "y").at(time.Minute + 500*time.Millisecond)
	finish := metav1.NewTime(noon)
	g.Evacuation.Status.ExpectedEvacuationFinishTime = &finish
	status := g.apply(t).Status
	if *status.ActiveEvacuatorClass != "b" || status.ActiveEvacuatorCompleted || status.ExpectedEvacuationFinishTime != nil {
		t.Errorf("got %+v", status)
	}
	if !status.EvacuationProgressTimestamp.Time.Equal(noon.Add(time.Minute)) {
		t.Errorf("the progress timestamp is not the current time in seconds: got %s", status.EvacuationProgressTimestamp)
	}
	if status.EvacuationCancellationPolicy != v1alpha1.CancellationForbid {
		t.Error("the cancellation policy has changed")
	}
	if !strings.Contains(status.Message, "Evacuator b is active") || len(status.Conditions) != 0 {
		t.Errorf("got message %q, conditions %v", status.Message, status.Conditions)
	}
}

func TestApplyResolve(t *testing.T) { // E4
	g := anEvacuation().resolving("a:2", "b:1")
	if got := show(g.apply(t).Spec.Evacuators); got != "a:2 b:1" {
		t.Errorf("got %s", got)
	}
	action := evacuation.Action{Kind: evacuation.ResolveEvacuators, Evacuators: evacuators("c:1")}
	action.Apply(g.Evacuation, noon)
	if got := show(g.Evacuation.Spec.Evacuators); got != "a:2 b:1" {
		t.Errorf("evacuators that are set have changed: got %s", got)
	}
}

func TestApplyAwaitBackoff(t *testing.T) {
	t.Run("R44: names the controller and the Node, and is followed by the eviction", func(t *testing.T) {
		g := anEvacuation().after(time.Minute).pod(func(p *evacuation.Pod) { p.Node, p.Controller = "worker", "Deployment shop/web" })
		status := g.apply(t).Status
		evicting := meta.FindStatusCondition(status.Conditions, v1alpha1.EvacuationEvicting)
		if evicting == nil || evicting.Status != metav1.ConditionFalse || evicting.Reason != v1alpha1.ReasonReplacementReturned ||
			evicting.Message != status.Message {
			t.Errorf("got %+v, message %q", evicting, status.Message)
		}
		const want = "A replacement of Deployment shop/web returned to cordoned Node worker; waiting until 2026-03-01T12:01:00Z to evict it. "
		if !strings.HasPrefix(status.Message, want) {
			t.Errorf("got %q", status.Message)
		}
		if status := g.at(time.Minute).apply(t).Status; !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.EvacuationEvicting) {
			t.Errorf("got %+v", status)
		}
	})
}

func TestApplyEvict(t *testing.T) { // E14
	t.Run("sets the condition Evicting with the reason", func(t *testing.T) {
		status := anEvacuation().apply(t).Status
		evicting := meta.FindStatusCondition(status.Conditions, v1alpha1.EvacuationEvicting)
		if evicting == nil || evicting.Status != metav1.ConditionTrue || evicting.Reason != v1alpha1.ReasonNoEvacuator ||
			!evicting.LastTransitionTime.Time.Equal(noon) {
			t.Errorf("got %+v", evicting)
		}
		if !status.ActiveEvacuatorCompleted || status.ActiveEvacuatorClass != nil || status.Message != evicting.Message {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("keeps the status of the last evacuator, so that new progress is recognized", func(t *testing.T) {
		status := anEvacuation("a:1").turnOf("a", 0).at(time.Hour).apply(t).Status
		if *status.ActiveEvacuatorClass != "a" || status.ActiveEvacuatorCompleted || !status.EvacuationProgressTimestamp.Time.Equal(noon) {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("keeps what the eviction waits for", func(t *testing.T) {
		status := anEvacuation().completed().evicting("NoEvacuator", "PDB a is exhausted").saying("PDB a is exhausted").apply(t).Status
		if status.Message != "PDB a is exhausted" || status.Conditions[0].Message != "PDB a is exhausted" {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("new progress of the evacuator removes the condition Evicting", func(t *testing.T) {
		status := anEvacuation("a:1").turnOf("a", time.Hour).evicting("EvacuatorUnresponsive", "x").saying("moving data").at(time.Hour).apply(t).Status
		if len(status.Conditions) != 0 || status.Message != "moving data" {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("E91: removes the condition Surged of a surge that exceeded its deadline, and keeps why no replica was added", func(t *testing.T) {
		for surged, want := range map[metav1.ConditionStatus]int{metav1.ConditionTrue: 1, metav1.ConditionFalse: 2} {
			g := anEvacuation("a:1").turnOf("a", 0).at(time.Hour)
			g.Evacuation.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.EvacuationSurged, Status: surged, Reason: "X", LastTransitionTime: metav1.NewTime(noon),
			}}
			if status := g.apply(t).Status; len(status.Conditions) != want {
				t.Errorf("%s: got %+v", surged, status)
			}
		}
	})
	t.Run("removes a condition of an evacuator when they fill the list", func(t *testing.T) {
		g := anEvacuation()
		for i := range 32 {
			g.Evacuation.Status.Conditions = append(g.Evacuation.Status.Conditions, metav1.Condition{Type: fmt.Sprintf("C%d", i),
				Status: metav1.ConditionTrue, Reason: "Filled", LastTransitionTime: metav1.NewTime(noon)})
		}
		status := g.apply(t).Status
		if len(status.Conditions) != 32 || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.EvacuationEvicting) || status.Conditions[30].Type != "C30" {
			t.Errorf("got %+v", status.Conditions)
		}
	})
}

func TestApplyAwaitEvacuator(t *testing.T) { // E6
	g := anEvacuation("a:1").turnOf("a", 24*365*time.Hour).at(time.Minute)
	if got := g.apply(t).Status.EvacuationProgressTimestamp; !got.Time.Equal(noon.Add(time.Minute)) {
		t.Errorf("a timestamp in the future is not replaced by the current time: got %s", got)
	}
	if got := summary(g.at(31 * time.Minute).next(t)); got != "Evict EvacuatorUnresponsive" {
		t.Errorf("a timestamp in the future blocks the eviction: got %s", got)
	}
}

func TestApplyAwaitTermination(t *testing.T) { // E15
	t.Run("records once why the Pod is not evicted", func(t *testing.T) {
		g := anEvacuation().of(static)
		status := g.apply(t).Status
		if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.EvacuationEvicting) || !strings.Contains(status.Message, "never evicted") ||
			status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", status)
		}
		if got := g.saying("moving data").apply(t).Status.Message; got != "moving data" {
			t.Errorf("the message of a late evacuator is overwritten: got %s", got)
		}
	})
	t.Run("records that the Pod was observed", func(t *testing.T) {
		g := anEvacuation().unowned().pod(terminating)
		g.apply(t)
		if got := summary(g.podGone().next(t)); got != "Finish delete" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("E43: writes no status for a Pod that terminates within a minute", func(t *testing.T) {
		g := anEvacuation().requestedByAnnotation().terminatingSince(0).at(59 * time.Second)
		if got := summary(g.next(t)); got != "AwaitTermination until 1m0s PodTerminating" {
			t.Errorf("got %s", got)
		}
		if got := toMap(t, g.apply(t))["status"]; got != nil {
			t.Errorf("got %v", got)
		}
	})
	t.Run("E43: reports a Pod that terminates for more than a minute", func(t *testing.T) {
		g := anEvacuation().requestedByAnnotation().terminatingSince(0).at(time.Minute)
		if got := g.apply(t).Status.Message; got != "The Pod has been terminating since 2026-03-01T12:00:00Z." {
			t.Errorf("got %q", got)
		}
		if got := g.saying("moving data").apply(t).Status.Message; got != "moving data" {
			t.Errorf("the message of an evacuator is overwritten: got %s", got)
		}
	})
	t.Run("changes nothing after an eviction", func(t *testing.T) {
		g := anEvacuation()
		g.apply(t)
		before := toJSON(t, g.Evacuation)
		g.pod(terminating).apply(t)
		if after := toJSON(t, g.Evacuation); after != before {
			t.Errorf("got %s, want %s", after, before)
		}
	})
}

func TestApplyEnds(t *testing.T) {
	t.Run("E8, E9: removes instigators, keeps foreign finalizers, and allows cancellation", func(t *testing.T) {
		e := anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy(foreign, ours, theirs).podGone().apply(t)
		if strings.Join(e.Finalizers, " ") != foreign || e.Status.EvacuationCancellationPolicy != v1alpha1.CancellationAllow {
			t.Errorf("got %s", toJSON(t, e))
		}
	})
	t.Run("E2: records that the Pod does not exist", func(t *testing.T) {
		g := anEvacuation().unowned().podGone()
		e := g.apply(t)
		failed := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationFailed)
		if failed == nil || failed.Status != metav1.ConditionTrue || failed.Reason != v1alpha1.ReasonPodNotFound || len(e.Finalizers) != 0 {
			t.Errorf("got %s", toJSON(t, e))
		}
		if got := summary(g.next(t)); got != "Finish delete" {
			t.Errorf("E2: the failed Evacuation is not deleted: got %s", got)
		}
	})
	t.Run("E9: cancellation changes nothing before the deletion", func(t *testing.T) {
		g := anEvacuation("a:1").turnOf("a", 0).heldBy(foreign)
		before := toJSON(t, g.Evacuation)
		if after := toJSON(t, g.apply(t)); after != before {
			t.Errorf("got %s, want %s", after, before)
		}
	})
}

func TestRefused(t *testing.T) { // E14
	g := anEvacuation()
	g.apply(t)
	evacuation.Refused(g.Evacuation, "Exhausted", "PDB a is exhausted", noon)
	evacuation.Waiting(g.Evacuation, "Exhausted", strings.Repeat("ß", 40000))
	status := g.Evacuation.Status
	if status.FailedEvictionCounter != 1 || status.Message != status.Conditions[0].Message || len([]rune(status.Message)) != 32768 {
		t.Errorf("got counter %d, message of %d characters", status.FailedEvictionCounter, len([]rune(status.Message)))
	}
	mustBeValid(t, g.Evacuation, nil)

	g.Evacuation.Status.FailedEvictionCounter = math.MaxInt32
	evacuation.Refused(g.Evacuation, "Exhausted", "PDB a is exhausted", noon)
	if got := g.Evacuation.Status.FailedEvictionCounter; got != math.MaxInt32 {
		t.Errorf("the counter has overflowed: got %d", got)
	}

	e := anEvacuation("a:1").turnOf("a", 0).saying("moving data").Evacuation
	evacuation.Waiting(e, "Exhausted", "PDB a is exhausted")
	if e.Status.Message != "moving data" {
		t.Errorf("the message of an Evacuation that is not evicting is overwritten: got %s", e.Status.Message)
	}
}

// TestWrites counts the writes for a Pod without evacuators: the status, a DELETE, the finalizers.
func TestWrites(t *testing.T) {
	g := anEvacuation()
	var writes []string
	for _, change := range []func(*evacuation.Pod){
		unknown,
		func(p *evacuation.Pod) { p.Known, p.Exists = true, true },
		func(*evacuation.Pod) {}, // the eviction is retried
		terminating,
		func(p *evacuation.Pod) { *p = evacuation.Pod{Known: true} },
	} {
		g.pod(change)
		before := g.Evacuation.DeepCopy()
		action := g.next(t)
		g.apply(t)
		if toJSON(t, &v1alpha1.Evacuation{Status: before.Status}) != toJSON(t, &v1alpha1.Evacuation{Status: g.Evacuation.Status}) {
			writes = append(writes, "status")
		}
		if action.Delete {
			writes = append(writes, "delete")
		}
		if !slices.Equal(before.Finalizers, g.Evacuation.Finalizers) {
			writes = append(writes, "finalizers")
		}
	}
	if want := []string{"status", "delete", "finalizers"}; !slices.Equal(writes, want) {
		t.Errorf("got %v, want %v", writes, want)
	}
}

func TestIsAttempted(t *testing.T) {
	due := noon.Add(1500 * time.Millisecond)
	refused := func(at time.Time) *given {
		g := anEvacuation()
		g.apply(t)
		evacuation.Refused(g.Evacuation, v1alpha1.ReasonAdmissionRefused, "not now", at)
		return g
	}
	waiting := refused(noon)
	evacuation.Waiting(waiting.Evacuation, "BudgetExhausted", "PDB a is exhausted")
	untimed := refused(due)
	untimed.Evacuation.Status.FailedEvictionTime = nil
	for _, tc := range []struct {
		name string
		of   *given

		foundWaiting, want bool
	}{
		{"E52: an Evacuation without the condition Evicting is not an attempt", anEvacuation(), true, false},
		{"E52: a refusal before the attempt is due is not an attempt", refused(noon), true, false},
		{"E52: a refusal in the second in which the attempt is due is an attempt", refused(due), false, true},
		{"E52: a refusal later is an attempt", refused(noon.Add(time.Minute)), false, true},
		{"E52: a refusal without a time, by an earlier manager, is not an attempt", untimed, true, false},
		{"E52: a budget that allows no disruption is an attempt if the evictor has found the Pod waiting: its events are evaluated", waiting, true, true},
		{"M96: a budget that allowed no disruption when the evictor last ran, before an outage or a pause, is not an attempt", waiting, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := evacuation.IsAttempted(tc.of.Evacuation, due, tc.foundWaiting); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
