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
		t.Errorf("progress is now, in seconds: got %s", status.EvacuationProgressTimestamp)
	}
	if status.EvacuationCancellationPolicy != v1alpha1.CancellationForbid {
		t.Error("the cancellation policy is not reset")
	}
	if !strings.Contains(status.Message, "turn of evacuator b") || len(status.Conditions) != 0 {
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
		t.Errorf("what is set stays: got %s", got)
	}
}

func TestApplyAwaitBackoff(t *testing.T) {
	t.Run("R44: names the controller and the Node, and is followed by the eviction", func(t *testing.T) {
		g := anEvacuation().after(time.Minute).pod(func(p *evacuation.Pod) { p.Node, p.Controller = "worker", "Deployment shop/web" })
		status := g.apply(t).Status
		evicting := meta.FindStatusCondition(status.Conditions, v1alpha1.EvacuationEvicting)
		if evicting == nil || evicting.Status != metav1.ConditionFalse || evicting.Reason != v1alpha1.ReasonReplacementReturned || evicting.Message != status.Message {
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
	t.Run("it shows, and why", func(t *testing.T) {
		status := anEvacuation().apply(t).Status
		evicting := meta.FindStatusCondition(status.Conditions, v1alpha1.EvacuationEvicting)
		if evicting == nil || evicting.Status != metav1.ConditionTrue || evicting.Reason != v1alpha1.ReasonNoEvacuator || !evicting.LastTransitionTime.Time.Equal(noon) {
			t.Errorf("got %+v", evicting)
		}
		if !status.ActiveEvacuatorCompleted || status.ActiveEvacuatorClass != nil || status.Message != evicting.Message {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("what the last evacuator has said stays, so that its fresh progress can be told", func(t *testing.T) {
		status := anEvacuation("a:1").turnOf("a", 0).at(time.Hour).apply(t).Status
		if *status.ActiveEvacuatorClass != "a" || status.ActiveEvacuatorCompleted || !status.EvacuationProgressTimestamp.Time.Equal(noon) {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("what it waits for stays", func(t *testing.T) {
		status := anEvacuation().completed().evicting("NoEvacuator", "PDB a has no room").saying("PDB a has no room").apply(t).Status
		if status.Message != "PDB a has no room" || status.Conditions[0].Message != "PDB a has no room" {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("fresh progress ends it", func(t *testing.T) {
		status := anEvacuation("a:1").turnOf("a", time.Hour).evicting("EvacuatorUnresponsive", "x").saying("moving data").at(time.Hour).apply(t).Status
		if len(status.Conditions) != 0 || status.Message != "moving data" {
			t.Errorf("got %+v", status)
		}
	})
	t.Run("conditions that fill the list make room", func(t *testing.T) {
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
		t.Errorf("a timestamp in the future is written back as now: got %s", got)
	}
	if got := summary(g.at(31 * time.Minute).next(t)); got != "Evict EvacuatorUnresponsive" {
		t.Errorf("so that it doesn't hold the Pod forever: got %s", got)
	}
}

func TestApplyAwaitTermination(t *testing.T) { // E15
	t.Run("it says why nothing happens, once", func(t *testing.T) {
		g := anEvacuation().of(daemonSet)
		status := g.apply(t).Status
		if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.EvacuationEvicting) || !strings.Contains(status.Message, "never evicted") || status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", status)
		}
		if got := g.saying("I am late").apply(t).Status.Message; got != "I am late" {
			t.Errorf("an evacuator that is late has its say: got %s", got)
		}
	})
	t.Run("it shows that the Pod was seen", func(t *testing.T) {
		g := anEvacuation().pod(terminating)
		g.apply(t)
		if got := summary(g.podGone().next(t)); got != "Finish -nodemaintenance.k8s.io delete" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("it costs nothing after an eviction", func(t *testing.T) {
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
	t.Run("E8, E9: instigators go, foreign finalizers stay, what was forbidden is allowed", func(t *testing.T) {
		e := anEvacuation("a:1").turnOf("a", 0).forbidding().heldBy(foreign, ours, theirs).podGone().apply(t)
		if strings.Join(e.Finalizers, " ") != foreign || e.Status.EvacuationCancellationPolicy != v1alpha1.CancellationAllow {
			t.Errorf("got %s", toJSON(t, e))
		}
	})
	t.Run("E2: it says that the Pod wasn't there", func(t *testing.T) {
		g := anEvacuation().podGone()
		e := g.apply(t)
		failed := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationFailed)
		if failed == nil || failed.Status != metav1.ConditionTrue || failed.Reason != v1alpha1.ReasonPodNotFound || len(e.Finalizers) != 0 {
			t.Errorf("got %s", toJSON(t, e))
		}
		if got := summary(g.next(t)); got != "Finish delete" {
			t.Errorf("E2: then it is removed: got %s", got)
		}
	})
	t.Run("E9: to cancel changes nothing", func(t *testing.T) {
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
	evacuation.Refused(g.Evacuation, "NoRoom", "PDB a has no room")
	evacuation.Waiting(g.Evacuation, "NoRoom", strings.Repeat("ß", 40000))
	status := g.Evacuation.Status
	if status.FailedEvictionCounter != 1 || status.Message != status.Conditions[0].Message || len([]rune(status.Message)) != 32768 {
		t.Errorf("got counter %d, message of %d characters", status.FailedEvictionCounter, len([]rune(status.Message)))
	}
	mustBeValid(t, g.Evacuation, nil)

	g.Evacuation.Status.FailedEvictionCounter = math.MaxInt32
	evacuation.Refused(g.Evacuation, "NoRoom", "no room")
	if got := g.Evacuation.Status.FailedEvictionCounter; got != math.MaxInt32 {
		t.Errorf("the counter never decreases: got %d", got)
	}

	e := anEvacuation("a:1").turnOf("a", 0).saying("moving data").Evacuation
	evacuation.Waiting(e, "NoRoom", "no room")
	if e.Status.Message != "moving data" {
		t.Errorf("what isn't evicted waits for nothing: got %s", e.Status.Message)
	}
}

// TestWrites counts what a Pod that is plainly evicted costs its Evacuation: a status write, a DELETE, the finalizers.
func TestWrites(t *testing.T) {
	g := anEvacuation()
	var writes []string
	for _, change := range []func(*evacuation.Pod){
		unknown,
		func(p *evacuation.Pod) { p.Known, p.Exists = true, true },
		func(*evacuation.Pod) {}, // evicted, again and again
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
