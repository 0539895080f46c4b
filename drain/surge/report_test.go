package surge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestReportWithManyConditions(t *testing.T) {
	t.Run("E24: a list of conditions that other clients have filled does not prevent the report", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		for i := range 32 {
			e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{Type: fmt.Sprint("Other", i)})
		}
		surge.Report{Refusal: surge.NotRequested, Message: "not requested"}.Apply(e, time.Now())
		if len(e.Status.Conditions) != 32 || e.Status.Message != "not requested" || !e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
	t.Run("E91: a surge that cannot be recorded ends", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		e.Status.Conditions = make([]metav1.Condition, 32)
		surge.Report{Surged: surge.EventSurged, Message: "scaled"}.Apply(e, time.Now())
		if len(e.Status.Conditions) != 32 || !e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
}

func TestRefusedWrites(t *testing.T) {
	begun := func() *fixture { return deployed(2).evacuated(2, v1alpha1.SurgeAlways) }
	started := func() *fixture {
		f := surged(2, 2)
		f.settle()
		return f
	}
	for name, tc := range map[string]struct {
		decide func() (surge.Decision, *fixture)
		pods   int
	}{
		"the record of the surge": {func() (surge.Decision, *fixture) { f := begun(); return surge.Decide(f.observed()), f }, 2},
		"the number of replicas":  {func() (surge.Decision, *fixture) { f := begun(); f.step(); return surge.Decide(f.observed()), f }, 2},
		"minReplicas": {func() (surge.Decision, *fixture) {
			f := begun().scaledBy(1, 5)
			f.step()
			return surge.Decide(f.observed()), f
		}, 2},
		"the deletion cost of Pods": {func() (surge.Decision, *fixture) { f := started(); return surge.Decide(f.observed()), f }, 2},
		"a restart": {func() (surge.Decision, *fixture) {
			r := restarted(1).drained(1, begin)
			r.step()
			return surge.Decide(r.observed()), r.fixture
		}, 1},
		"not the write that scales back": {func() (surge.Decision, *fixture) { f := started(); f.step(); return surge.Decide(f.observed()), f }, 0},
		"not the write that reverts the surge": {func() (surge.Decision, *fixture) {
			f := started()
			clear(f.evacuations)
			return surge.Decide(f.observed()), f
		}, 0},
	} {
		t.Run("E92: the surge ends when the API server has refused a write for half a minute: "+name, func(t *testing.T) {
			d, f := tc.decide()
			denied := errors.New(`patching Deployment shop/web: admission webhook "no.example.com" denied the request: not by hand`)
			if got := d.Refuse(denied, f.now, f.now.Add(29*time.Second)); len(got) > 0 {
				t.Errorf("it ends at once: %v", got)
			}
			got := d.Refuse(denied, f.now, f.now.Add(30*time.Second))
			if len(got) != tc.pods {
				t.Fatalf("got %v", got)
			}
			for _, report := range got {
				if report.Refusal != surge.WriteRefused || !strings.Contains(report.Message, "denied the request: not by hand") {
					t.Errorf("got %v", report)
				}
			}
		})
	}
}

// TestRefusedReports: the API server refuses the reports on the Evacuations of some Pods.
func TestRefusedReports(t *testing.T) {
	refusing := func(f *fixture, pods ...*pod) {
		for _, p := range pods {
			f.refusing[p.UID] = true
		}
	}
	settle := func(f *fixture) {
		for range 20 {
			f.step()
			f.settle()
			f.evict()
		}
	}
	t.Run("E92: a surge begins, continues and ends although the reports on one of its Pods are refused", func(t *testing.T) {
		f := deployed(2, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways)
		refusing(f, f.pods[0])
		if settle(f); len(f.evacuations) > 0 || len(f.refusals) > 0 || f.baseline() != nil || *f.deployment.Spec.Replicas != 2 {
			t.Errorf("%d Evacuations remain, refused %v, %v", len(f.evacuations), f.refusals, f.deployment)
		}
	})
	t.Run("E92: a surge begins and ends although the reports on a Pod of a later round are refused", func(t *testing.T) {
		f := deployed(2, maxSurge("1")).evacuated(2, v1alpha1.SurgeAlways)
		f.step()
		later := f.pods[1]
		if slices.Contains(f.baselineOf(f.deployment), later.UID) {
			later = f.pods[0]
		}
		refusing(f, later)
		if settle(f); f.pod(later.UID) == nil || len(f.evacuations) != 1 || len(f.refusals) > 0 {
			t.Errorf("%d Evacuations remain, refused %v, %v", len(f.evacuations), f.refusals, f.deployment)
		}
	})
	t.Run("E92: Pods of a later round wait although the reports about a Pod that its ReplicaSet has not deleted are refused", func(t *testing.T) {
		f := surged(2, 1)
		f.evacuated(1, v1alpha1.SurgeAlways) // of the later round
		first, later := f.pods[0], f.pods[1]
		f.settle()
		f.step() // mark
		refusing(f, first)
		f.step()                // scale back
		f.remove(f.pods[2].UID) // the new one
		for deadline := f.evacuations[first.UID].since.Add(f.deadline); f.now.Before(deadline); f.now = f.now.Add(10 * time.Second) {
			f.observe()
			if f.step(); len(f.refusals) > 0 || f.marked() != 1 {
				t.Fatalf("refused %v, %v, %d Pods are marked", f.refusals, f.reports, f.marked())
			}
		}
		if f.step(); f.marked() > 0 { // it is to be evicted
			t.Errorf("%d Pods are marked", f.marked())
		}
		if settle(f); len(f.evacuations) > 0 || len(f.refusals) > 0 || f.pod(later.UID) != nil {
			t.Errorf("%d Evacuations remain, refused %v, %v", len(f.evacuations), f.refusals, f.reports)
		}
	})
	t.Run("E91: no replica is added without a record of the surge", func(t *testing.T) {
		f := deployed(2, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways)
		refusing(f, f.pods...)
		if settle(f); len(f.events) > 0 || f.created > 2 {
			t.Errorf("got %v, %v", f.events, f.deployment)
		}
		clear(f.refusing)
		if settle(f); len(f.evacuations) > 0 || len(f.refusals) > 0 {
			t.Errorf("%d Evacuations remain, refused %v", len(f.evacuations), f.refusals)
		}
	})
	t.Run("E91: the report on a Pod of a later round is no record of the surge", func(t *testing.T) {
		f := deployed(2, maxSurge("1")).evacuated(2, v1alpha1.SurgeAlways)
		f.step()
		refusing(f, f.pod(f.baselineOf(f.deployment)[0]))
		if settle(f); len(f.events) > 0 || f.created > 2 {
			t.Errorf("got %v, %v", f.events, f.deployment)
		}
	})
	t.Run("E92: a record that was stored before suffices", func(t *testing.T) {
		f := deployed(2, maxSurge("100%")).evacuated(2, v1alpha1.SurgeAlways)
		f.step()
		f.apply(surge.Decide(f.observed()), 1) // it crashes after the first report
		refusing(f, f.pods[1])
		if f.step(); *f.deployment.Spec.Replicas != 4 {
			t.Errorf("got %v", f.deployment)
		}
	})
	for name, refused := range map[string]int{"on one of its Pods": 1, "on all of its Pods": 2} {
		t.Run("E92: an edit by another actor ends the surge, which does not begin again, although the reports "+name+" are refused", func(t *testing.T) {
			f := surged(2, 2)
			f.settle()
			f.step() // marks them
			refusing(f, f.pods[:refused]...)
			f.scaleAs("gitops", 3)
			settle(f)
			if f.baseline() != nil || *f.deployment.Spec.Replicas != 3 || f.marked() > 0 || len(f.evacuations) != refused {
				t.Errorf("%d Pods are marked, refused %v, %v", f.marked(), f.refusals, f.deployment)
			}
		})
	}
	t.Run("E93: the number of replicas is restored although the reports on one of the Pods are refused", func(t *testing.T) {
		f := surged(2, 2)
		refusing(f, f.pods[0])
		f.deployment = f.deployment.DeepCopy()
		f.deployment.Labels, f.deployment.Annotations = nil, nil
		if settle(f); *f.deployment.Spec.Replicas != 2 || f.baseline() != nil || f.refusals["web-002"] != surge.Edited {
			t.Errorf("refused %v, %v", f.refusals, f.deployment)
		}
	})
	t.Run("E97: it is not restored while all reports are refused: the watch may lag, and the surge have ended", func(t *testing.T) {
		f := surged(2, 2)
		refusing(f, f.pods...)
		f.deployment = f.deployment.DeepCopy()
		f.deployment.Labels, f.deployment.Annotations = nil, nil
		if settle(f); *f.deployment.Spec.Replicas != 4 {
			t.Errorf("got %v", f.deployment)
		}
	})
	t.Run("E27, E92: the same if the report about another Pod of the round is stored", func(t *testing.T) {
		f := deployed(3, maxSurge("2")).evacuated(3, v1alpha1.SurgeAlways)
		f.step()
		f.full = true
		f.step()
		f.replicate()
		f.observe()
		first, second, later := f.baseline().Pods[0].UID, f.baseline().Pods[1].UID, types.UID("web-003")
		f.refusing[first] = true
		f.now = f.evacuations[first].since.Add(progressDeadline - 5*time.Second)
		f.evacuations[later].since = f.now // renewed
		f.step()
		for range 5 {
			f.replicate()
			f.observe()
			if f.step(); len(f.refusals) != 1 || f.refusals[second] != surge.Unschedulable {
				t.Fatalf("refused: %v, %v", f.refusals, f.reports)
			}
		}
		f.schedule()
		f.now = f.now.Add(5 * time.Second)
		if settle(f); len(f.refusals) != 1 || len(f.evacuations) > 0 {
			t.Errorf("refused: %v, %v", f.refusals, f.reports)
		}
	})
	t.Run("E27, E92: the Pods of later rounds are surged although a Pod whose deadline is about to be exceeded cannot be refused", func(t *testing.T) {
		f := deployed(2, maxSurge("1")).evacuated(2, v1alpha1.SurgeAlways)
		f.step()
		f.full = true
		f.step()
		f.replicate()
		f.observe()
		first := f.baseline().Pods[0].UID
		f.refusing[first] = true
		f.now = f.evacuations[first].since.Add(progressDeadline - time.Second)
		for uid, e := range f.evacuations {
			if uid != first {
				e.since = f.now // renewed
			}
		}
		for range 5 {
			if f.step(); len(f.refusals) > 0 {
				t.Fatalf("refused: %v, %v", f.refusals, f.reports)
			}
		}
		f.now = f.now.Add(time.Second)
		f.schedule()
		if settle(f); len(f.refusals) > 0 || len(f.evacuations) > 0 {
			t.Errorf("refused: %v, %v", f.refusals, f.reports)
		}
	})
	createsFirst := func(d *appsv1.Deployment) {
		none := intstr.FromInt32(0)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &none}
	}
	t.Run("E79: the restart counts for a Pod whose drain has begun after the report on another one", func(t *testing.T) {
		r := restarted(2, createsFirst).drained(1, begin.Add(-time.Minute))
		r.step() // reports
		r.now = r.now.Add(10 * time.Second)
		r.drained(1, begin.Add(5*time.Second))
		if r.step(); r.restarts() != 1 {
			t.Fatalf("got %v", r.events)
		}
		r.revert()
		r.step()
		if r.step(); r.restarts() != 1 || r.refusals["web-001"] != surge.RestartReverted || r.refusals["web-002"] != surge.RestartReverted {
			t.Errorf("restarted %d times, refused %v", r.restarts(), r.refusals)
		}
	})
	t.Run("E79, E92: a Deployment is restarted once although the reports on one of its Pods are refused", func(t *testing.T) {
		r := restarted(2, createsFirst).drained(2, begin.Add(-time.Minute))
		refusing(r.fixture, r.pods[0])
		r.run(t)
		if r.restarts() != 1 || len(r.refusals) > 0 {
			t.Errorf("restarted %d times, refused %v", r.restarts(), r.refusals)
		}
	})
}

func TestReports(t *testing.T) {
	t.Run("E91: the condition Surged is that of the last report", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		for _, tc := range []struct {
			report surge.Report
			surged string
			status metav1.ConditionStatus
		}{
			{surge.Report{Message: "waiting"}, "", ""},
			{surge.Report{Surged: surge.EventSurged, Message: "scaled"}, surge.EventSurged, metav1.ConditionTrue},
			{surge.Report{Surged: surge.EventSurged, Message: "unschedulable", Stalled: true}, surge.EventSurged, metav1.ConditionTrue},
			{surge.Report{Message: "a later round"}, "", ""},
			{surge.Report{Surged: surge.EventRestarted, Message: "restarted"}, surge.EventRestarted, metav1.ConditionTrue},
			{surge.Report{Refusal: surge.Edited, Message: "edited"}, "", metav1.ConditionFalse},
		} {
			tc.report.Apply(e, time.Now())
			var status metav1.ConditionStatus
			if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.EvacuationSurged); c != nil {
				status = c.Status
			}
			if surge.SurgedIn(e) != tc.surged || status != tc.status || e.Status.ActiveEvacuatorCompleted != (tc.report.Refusal != "") {
				t.Errorf("%v: got %+v", tc.report, e.Status)
			}
		}
	})
}

func TestIsOutdated(t *testing.T) {
	begins := surge.Decision{Recorded: []types.UID{"a"}, Serves: []surge.Leaving{{PodRef: surge.PodRef{UID: "a"}}}}
	ends := surge.Decision{Recorded: []types.UID{"a"}}
	refuses := surge.Decision{Reports: []surge.Report{{Pod: "a", Refusal: surge.Edited}}}
	suspended, waits := map[types.UID]surge.Wait{"a": {Suspended: true}}, map[types.UID]surge.Wait{"a": {}}
	for name, tc := range map[string]struct {
		decision surge.Decision
		present  map[types.UID]surge.Wait
		before   surge.Leaving
		want     bool
	}{
		"M160: not while the Pod waits":                                 {begins, waits, surge.Leaving{}, false},
		"M160: when its drain was suspended":                            {begins, suspended, surge.Leaving{}, true},
		"M160: not if it was suspended before":                          {begins, suspended, surge.Leaving{Suspended: true}, false},
		"M160: when its drain was cancelled":                            {begins, nil, surge.Leaving{}, true},
		"M160: when its deadline was exceeded":                          {begins, map[types.UID]surge.Wait{"a": {Ended: true}}, surge.Leaving{}, true},
		"E97: the end of a surge not when the drain was cancelled":      {ends, nil, surge.Leaving{}, false},
		"M160: the end of a surge when the drain was suspended":         {ends, suspended, surge.Leaving{}, true},
		"M160: not when the drain of a refused Pod was cancelled":       {refuses, nil, surge.Leaving{}, false},
		"M160: when the drain of a refused Pod was suspended meanwhile": {refuses, suspended, surge.Leaving{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.before.UID = "a"
			if got := tc.decision.IsOutdated(surge.Observation{Leaving: []surge.Leaving{tc.before}}, tc.present); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
