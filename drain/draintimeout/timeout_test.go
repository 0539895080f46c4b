package draintimeout_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestDrainOf(t *testing.T) {
	drain := func(stage v1alpha1.NodeMaintenanceStage, onTimeout v1alpha1.OnTimeoutPolicy, timeout *int32) *v1alpha1.NodeMaintenance {
		m := &v1alpha1.NodeMaintenance{}
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
		m.Spec.Stage, m.Spec.Evacuation.OnTimeout, m.Spec.Evacuation.DrainTimeoutSeconds = stage, onTimeout, timeout
		return m
	}
	for name, tc := range map[string]struct {
		m    *v1alpha1.NodeMaintenance
		want *draintimeout.Drain
	}{
		"M13: the timeout starts with the drain": {
			drain(v1alpha1.StageDrain, v1alpha1.OnTimeoutDelete, ptr.To[int32](60)),
			&draintimeout.Drain{Start: start, Began: start, Ends: start.Add(time.Minute), Observed: start, Deletes: true},
		},
		"M13: onTimeout Release deletes no Pods": {
			drain(v1alpha1.StageDrain, v1alpha1.OnTimeoutRelease, ptr.To[int32](60)),
			&draintimeout.Drain{Start: start, Began: start, Ends: start.Add(time.Minute), Observed: start},
		},
		"M13: without a timeout there is no limit":     {drain(v1alpha1.StageDrain, v1alpha1.OnTimeoutDelete, nil), nil},
		"M13: 0 is no limit":                           {drain(v1alpha1.StageDrain, v1alpha1.OnTimeoutDelete, ptr.To[int32](0)), nil},
		"M13: a maintenance that ends deletes nothing": {drain(v1alpha1.StageComplete, v1alpha1.OnTimeoutDelete, ptr.To[int32](60)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := draintimeout.DrainOf(tc.m, nil, start); (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestResumedDrain: Pods that must be drained again after a drain has ended get the whole drain timeout, and none is deleted at once.
func TestResumedDrain(t *testing.T) {
	g := NewWithT(t)
	m := &v1alpha1.NodeMaintenance{}
	m.Spec.Stage, m.Spec.Evacuation.OnTimeout, m.Spec.Evacuation.DrainTimeoutSeconds = v1alpha1.StageDrain, v1alpha1.OnTimeoutDelete, ptr.To[int32](60)
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
	report := func(after time.Duration, drained metav1.ConditionStatus) {
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
			Type: v1alpha1.NodeMaintenanceDrained, Status: drained, Reason: "x", LastTransitionTime: metav1.NewTime(start.Add(after)),
		})
		m.Status.DrainTimeout = draintimeout.Observe(m, start.Add(after))
	}
	report(0, metav1.ConditionFalse)
	g.Expect(m.Status.DrainTimeout.Deadline.Time).To(Equal(start.Add(time.Minute)), "M13")
	report(10*time.Second, metav1.ConditionTrue)
	g.Expect(draintimeout.DrainOf(m, nil, start.Add(time.Hour))).To(BeNil(), "M94: nothing is due when Pods appear")
	report(time.Hour, metav1.ConditionFalse)
	drain := draintimeout.DrainOf(m, nil, start.Add(time.Hour))
	g.Expect(drain.Ends).To(Equal(start.Add(time.Hour+time.Minute)), "M94")
	g.Expect(drain.DeleteAt(0, nil)).To(Equal(start.Add(time.Hour+55*time.Second)), "M94")
	m.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: start.Add(time.Hour + time.Second).Format(time.RFC3339)}
	g.Expect(draintimeout.DrainOf(m, nil, start.Add(time.Hour)).Ends).To(Equal(start.Add(time.Hour+61*time.Second)), "M97: the Machine's record counts")
}

func TestObserve(t *testing.T) {
	m := &v1alpha1.NodeMaintenance{}
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
	m.Spec.Stage, m.Spec.Evacuation.DrainTimeoutSeconds = v1alpha1.StageDrain, ptr.To[int32](60)
	observe := func(after time.Duration) *draintimeout.Drain {
		m.Status.DrainTimeout = draintimeout.Observe(m, start.Add(after))
		return draintimeout.DrainOf(m, nil, start.Add(after))
	}
	g := NewWithT(t)
	g.Expect(observe(time.Second)).To(Equal(&draintimeout.Drain{Start: start, Began: start, Ends: start.Add(time.Minute), Observed: start.Add(time.Second)}))
	g.Expect(observe(time.Minute).Observed).To(Equal(start.Add(time.Second)), "M96: keeps the time of the observation")
	m.Status.DrainTimeout = nil
	g.Expect(observe(300*time.Millisecond).Observed).To(Equal(start.Add(time.Second)), "E52: an attempt in the same second may have been made before")

	m.Spec.Evacuation.DrainTimeoutSeconds = ptr.To[int32](30)
	late := observe(time.Hour)
	g.Expect(late.Observed).To(Equal(start.Add(time.Hour)))
	g.Expect(late.FinalAttemptAt(time.Minute)).To(Equal(start.Add(time.Hour)), "M96: attempts to evict when a timeout is observed that is set late")
	g.Expect(late.DeleteAt(time.Minute, nil)).To(Equal(start.Add(time.Hour)), "M96: deletes when a timeout is observed that is set late")

	m.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: start.Add(-time.Hour).Format(time.RFC3339)}
	g.Expect(observe(2*time.Hour).Ends).To(Equal(start.Add(30*time.Second-time.Hour)), "M97: counts from the recorded start")
	m.Annotations = map[string]string{v1alpha1.DrainStartedAnnotation: start.Add(time.Hour).Format(time.RFC3339)}
	g.Expect(observe(2*time.Hour).Ends).To(Equal(start.Add(30*time.Second+time.Hour)), "M97: counts from the resumption of a drain that had ended")
	m.Spec.Evacuation.DrainTimeoutSeconds = nil
	g.Expect(observe(2 * time.Hour)).To(BeNil())
}

func TestJoined(t *testing.T) {
	at := func(seconds int) *metav1.Time {
		return ptr.To(metav1.NewTime(start.Add(time.Duration(seconds) * time.Second)))
	}
	for _, tc := range []struct {
		name    string
		change  func(*v1alpha1.NodeMaintenance)
		listed  bool
		joined  *metav1.Time
		created int
		want    *metav1.Time
	}{
		{name: "R59: a Node that the status lists began with the stage", listed: true, created: -100},
		{name: "R59: a Node that the status does not list joins now", created: -100, want: at(60)},
		{name: "R59: keeps the time at which a Node joined", listed: true, created: -100, joined: at(30), want: at(30)},
		{name: "R59: a Node that was registered again under the same name joins now", listed: true, created: 40, want: at(60)},
		{name: "R59: also if the previous one had joined later", listed: true, created: 40, joined: at(30), want: at(60)},
		{name: "R59: keeps the time at which a Node joined that was registered before", listed: true, created: 40, joined: at(45), want: at(45)},
		{name: "R59: does not change the time if the clock of the workload cluster is ahead", created: 100, want: at(100)},
		{name: "M97: the Node of a Machine has the timeout of the Machine", created: -100, change: func(m *v1alpha1.NodeMaintenance) {
			m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "default/m"}
		}},
		{name: "R59: no Node joins before the stage", created: -100, change: func(m *v1alpha1.NodeMaintenance) { m.Status.StageStatuses = nil }},
		{name: "R59: no Node joins in stage Cordon", created: -100, change: func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
			m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
			if tc.change != nil {
				tc.change(m)
			}
			var listed *v1alpha1.NodeMaintenanceNodeStatus
			if tc.listed {
				listed = &v1alpha1.NodeMaintenanceNodeStatus{DrainStartTime: tc.joined}
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *at(tc.created)}}
			if got := draintimeout.Joined(m, listed, node, start.Add(60*time.Second+300*time.Millisecond)); !got.Equal(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("R59: the drain of a Node that joined later has its whole timeout", func(t *testing.T) {
		m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
		m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
		m.Spec.Evacuation.DrainTimeoutSeconds = ptr.To[int32](20)
		NewWithT(t).Expect(draintimeout.DrainOf(m, at(60), start)).To(Equal(&draintimeout.Drain{
			Start: at(60).Time, Began: at(60).Time, Ends: at(80).Time, Observed: start,
		}))
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceDrained, Status: metav1.ConditionFalse, LastTransitionTime: *at(70)}}
		NewWithT(t).Expect(draintimeout.DrainOf(m, at(60), start)).To(Equal(&draintimeout.Drain{
			Start: at(70).Time, Began: at(70).Time, Ends: at(90).Time, Observed: start,
		}), "M94")
	})
}

func TestRecord(t *testing.T) {
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for _, tc := range []struct {
		name     string
		began    *int
		progress draintimeout.Progress
		want     string
	}{
		{"M96: records nothing while attempts are not due", ptr.To(10), draintimeout.Progress{}, "-"},
		{"M96: gives the attempts 30 s", nil, draintimeout.Progress{AllDue: true, Missing: 1}, "from 1m40s until 2m10s"},
		{"M96: does not prolong the attempts for Pods that appear later", ptr.To(10), draintimeout.Progress{AllDue: true, Missing: 1}, "from 10s until 40s"},
		{"M96: gives the Pods that terminate their grace periods", ptr.To(10), draintimeout.Progress{AllDue: true, TerminatingUntil: at(300)}, "from 10s until 5m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status := &v1alpha1.DrainTimeoutStatus{}
			if tc.began != nil {
				status.FinalAttemptTime = ptr.To(metav1.NewTime(at(*tc.began)))
			}
			draintimeout.Record(status, tc.progress, at(100))
			got := "-"
			if status.FinalAttemptTime != nil {
				got = fmt.Sprintf("from %s until %s", status.FinalAttemptTime.Sub(start), status.FinalAttemptEndTime.Sub(start))
			}
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAddTerminating(t *testing.T) {
	g := NewWithT(t)
	progress := draintimeout.Progress{AllDue: true}
	g.Expect(progress.AddTerminating(start.Add(-draintimeout.Margin), start)).To(BeZero(), "M96: does not wait for a Pod after its grace period")
	g.Expect(progress.Done()).To(BeTrue())
	g.Expect(progress.AddTerminating(start.Add(time.Minute), start)).To(Equal(start.Add(time.Minute + draintimeout.Margin)))
	progress.AddTerminating(start.Add(time.Second), start)
	g.Expect(progress.TerminatingUntil).To(Equal(start.Add(time.Minute+draintimeout.Margin)), "the last one counts")
	g.Expect(progress.Done()).To(BeFalse())
}

func TestNextFinalAttempt(t *testing.T) {
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	terms := evacuation.Terms{Timeouts: []evacuation.Timeout{{Start: start, Ends: at(600), Observed: start}, {Start: start, Ends: at(200), Observed: start}}}
	late := evacuation.Terms{Timeouts: []evacuation.Timeout{{Start: start, Ends: at(10), Observed: at(50)}}}
	g := NewWithT(t)
	g.Expect(draintimeout.NextFinalAttempt(evacuation.Terms{}, 0, start)).To(BeZero(), "E52: there is none without a timeout")
	g.Expect(draintimeout.NextFinalAttempt(terms, 5*time.Second, start)).To(Equal(at(165)))
	g.Expect(draintimeout.NextFinalAttempt(terms, 5*time.Second, at(165))).To(Equal(at(565)), "E52: each drain of the Node has one")
	g.Expect(draintimeout.NextFinalAttempt(terms, 5*time.Second, at(565))).To(BeZero(), "E52: once")
	g.Expect(draintimeout.NextFinalAttempt(late, time.Minute, at(31))).To(Equal(at(50)), "E52: when a timeout is observed that is set late")
}

func TestDeleteAt(t *testing.T) {
	never := time.Duration(-1)
	for _, tc := range []struct {
		name                 string
		timeout, gracePeriod time.Duration
		recreated            time.Duration // after the start
		refused              time.Duration // after the start
		want                 time.Duration // after the start
		short                bool
	}{
		{"M13: deletes a Pod early enough for its grace period", 10 * time.Minute, 30 * time.Second, 0, never, 9*time.Minute + 25*time.Second, false},
		{"M13: deletes a Pod with a long grace period earlier", 10 * time.Minute, 4 * time.Minute, 0, never, 5*time.Minute + 55*time.Second, false},
		{"M13: deletes a Pod in the first half of the timeout if its grace period requires it", 2 * time.Minute, 90 * time.Second, 0, never, 25 * time.Second, false},
		{"M13: deletes no Pod in the first 10 s", 10 * time.Minute, 10 * time.Minute, 0, never, 10 * time.Second, true},
		{"M13: deletes no Pod in the first half whose grace period is longer than the timeout", 30 * time.Minute, time.Hour, 0, never, 15 * time.Minute, true},
		{"M13: a Pod that is deleted after 10 s has its grace period", 100 * time.Second, 90 * time.Second, 0, never, 10 * time.Second, false},
		{"M13: warns if less than the grace period is left after 10 s", 99 * time.Second, 90 * time.Second, 0, never, 10 * time.Second, true},
		{"M13: deletes no Pod in the first half of a short timeout", 8 * time.Second, 30 * time.Second, 0, never, 4 * time.Second, true},
		{"M13: deletes a Pod earlier whose eviction was refused", 100 * time.Second, 90 * time.Second, 0, 2 * time.Second, 5 * time.Second, false},
		{
			"M13: deletes a Pod at once whose eviction was refused and whose grace period does not fit",
			time.Minute, time.Minute, 0, 2 * time.Second, 2 * time.Second, true,
		},
		{
			"M13: not if its grace period is longer than the timeout: it may be evicted in the first half",
			30 * time.Minute, time.Hour, 0, 2 * time.Second, 15 * time.Minute, true,
		},
		{"M13: a later refusal changes nothing", time.Minute, time.Minute, 0, 20 * time.Second, 10 * time.Second, true},
		{
			"M97: attempts evictions for 10 s after a NodeMaintenance was recreated", 10 * time.Minute, 8 * time.Minute, 4 * time.Minute, never, 250 * time.Second, true,
		},
		{
			"M97: a refusal from before the NodeMaintenance was recreated does not count",
			10 * time.Minute, 8 * time.Minute, 4 * time.Minute, time.Minute, 250 * time.Second, true,
		},
		{"M97: attempts evictions in half of what is left of the timeout", 10 * time.Minute, time.Minute, 590 * time.Second, never, 595 * time.Second, true},
		{"M96: deletes at once if a NodeMaintenance is recreated after the timeout", 10 * time.Minute, time.Minute, 11 * time.Minute, never, 11 * time.Minute, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			drain := draintimeout.Drain{Start: start, Began: start.Add(tc.recreated), Ends: start.Add(tc.timeout), Observed: start.Add(tc.recreated), Deletes: true}
			e := &v1alpha1.Evacuation{}
			if tc.refused != never {
				e.Status.FailedEvictionTime = ptr.To(metav1.NewTime(start.Add(tc.refused)))
			}
			g.Expect(drain.DeleteAt(tc.gracePeriod, e).Sub(start)).To(Equal(tc.want))
			if tc.refused == never {
				g.Expect(drain.DeleteAt(tc.gracePeriod, nil).Sub(start)).To(Equal(tc.want))
			}
			for _, reason := range []string{v1alpha1.ReasonEvictionRefused, v1alpha1.ReasonNoResponse, v1alpha1.ReasonAPIServerBusy} {
				e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: reason}}
				g.Expect(drain.DeleteAt(tc.gracePeriod, e)).To(Equal(drain.DeleteAt(tc.gracePeriod, nil)), "the API server did not decide: %s", reason)
			}
			isShort := drain.Shortage(tc.gracePeriod) != ""
			g.Expect(isShort).To(Equal(tc.short), "warns")
			drain.Deletes = false
			g.Expect(drain.Shortage(tc.gracePeriod)).To(BeEmpty(), "it deletes no Pods")
		})
	}
	t.Run("M13: says what to do if the grace period does not fit", func(t *testing.T) {
		drain := draintimeout.Drain{Start: start, Began: start, Ends: start.Add(time.Minute), Deletes: true}
		NewWithT(t).Expect(drain.Shortage(90 * time.Second)).To(Equal(
			"Its grace period of 1m30s does not fit into the drain timeout of 1m0s, before which onTimeout: Delete deletes it: set a timeout of at least 1m45s"))
	})
}

func TestFinalAttemptAt(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		timeout, gracePeriod time.Duration
		deletes              bool
		want                 time.Duration // after the start
	}{
		{"M13: makes the final attempt early enough for the eviction", 10 * time.Minute, 30 * time.Second, false, 9 * time.Minute},
		{"M13: respects the order in the first half of the timeout", 10 * time.Minute, time.Hour, false, 5 * time.Minute},
		{"M13: respects the order in the first half of a short timeout", 20 * time.Second, 30 * time.Second, false, 10 * time.Second},
		{"M13: makes the final attempt before a Pod is deleted in the first half of the timeout", 2 * time.Minute, 80 * time.Second, true, 10 * time.Second},
		{"M13: makes the final attempt 10 s before a Pod is deleted", 2 * time.Minute, 105 * time.Second, true, 0},
		{
			"M13: makes the final attempt 10 s before the deletion of a Pod whose grace period is longer than the timeout",
			10 * time.Minute, time.Hour, true, 290 * time.Second,
		},
		{"M13: makes the final attempt at the same time if Pods are deleted late", 10 * time.Minute, 30 * time.Second, true, 9 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			drain := draintimeout.Drain{Start: start, Began: start, Ends: start.Add(tc.timeout), Deletes: tc.deletes}
			if got := drain.FinalAttemptAt(tc.gracePeriod).Sub(start); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// drawDrain draws a drain that has a time limit, and the grace period of a Pod.
func drawDrain(t *rapid.T) (drain draintimeout.Drain, timeout, gracePeriod time.Duration) {
	timeout = time.Duration(rapid.IntRange(1, 100_000).Draw(t, "timeout")) * time.Second
	gracePeriod = time.Duration(rapid.IntRange(0, 100_000).Draw(t, "grace period")) * time.Second
	began := start.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 0, 5, 60}).Draw(t, "recreated")) * time.Second)
	return draintimeout.Drain{Start: start, Began: began, Ends: start.Add(timeout), Deletes: rapid.Bool().Draw(t, "deletes")}, timeout, gracePeriod
}

// TestAskedBeforeDeleted: no Pod is deleted in the 10 s after its final eviction attempt, or in half of the timeout if that is shorter,
// unless its eviction was refused, and each attempt is made before the end.
func TestFinalAttemptBeforeDeletion(t *testing.T) { // M13
	rapid.Check(t, func(t *rapid.T) {
		drain, timeout, gracePeriod := drawDrain(t)
		asked, deleted := drain.FinalAttemptAt(gracePeriod), drain.DeleteAt(gracePeriod, nil)
		evicts := max(0, min(10*time.Second, drain.Ends.Sub(drain.Began)/2))
		if drain.Deletes && (deleted.Sub(asked) < evicts || asked.Before(drain.Began)) || drain.Began.Before(drain.Ends) && !asked.Before(drain.Ends) {
			t.Fatalf("asked %s after the start, deleted %s after it, of %s", asked.Sub(start), deleted.Sub(start), timeout)
		}
	})
}

func TestGetsFinalAttempt(t *testing.T) {
	verdict := func(behavior v1alpha1.DrainBehavior) rules.Verdict { return rules.Verdict{Behavior: behavior} }
	drain, completes := verdict(v1alpha1.DrainBehaviorDrain), verdict(v1alpha1.DrainBehaviorWaitCompleted)
	for name, tc := range map[string]struct {
		podType v1alpha1.PodType
		own     rules.Verdict
		others  []rules.Verdict
		want    bool
	}{
		"M13: a Pod that drains gets a final attempt":         {v1alpha1.PodTypeDefault, drain, nil, true},
		"M13: a Pod that must complete gets no final attempt": {v1alpha1.PodTypeDefault, completes, nil, false},
		"M13: a skipped Pod gets no final attempt":            {v1alpha1.PodTypeDefault, verdict(v1alpha1.DrainBehaviorSkip), nil, false},
		"M13: an undecided Pod gets no final attempt": {
			v1alpha1.PodTypeDefault, rules.Verdict{Undecided: "a rule can't be read"}, nil, false,
		},
		"M13: a Pod that must complete for another maintenance gets no final attempt": {v1alpha1.PodTypeDefault, drain, []rules.Verdict{completes}, false},
		"M13: a Pod of a DaemonSet gets no final attempt":                             {v1alpha1.PodTypeDaemonSet, drain, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := draintimeout.GetsFinalAttempt(tc.podType, tc.own, tc.others); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestAttempted(t *testing.T) {
	silent, evicting := &v1alpha1.Evacuation{}, &v1alpha1.Evacuation{}
	evicting.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EvacuationEvicting, Status: metav1.ConditionTrue, Reason: "BudgetExhausted"}}
	for name, tc := range map[string]struct {
		terminating bool
		evacuation  *v1alpha1.Evacuation

		foundWaiting, want bool
	}{
		"M13: a Pod without an Evacuation was not attempted":                      {false, nil, true, false},
		"M13: an Evacuation without the condition Evicting is not an attempt":     {false, silent, true, false},
		"M13: a Pod that the evictor has found waiting was attempted":             {false, evicting, true, true},
		"M96: one that the evictor of this process has not found waiting was not": {false, evicting, false, false},
		"M13: a terminating Pod with an Evacuation counts as attempted":           {true, silent, false, true},
		"M13: a terminating Pod counts as attempted":                              {true, nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := draintimeout.Attempted(tc.terminating, tc.evacuation, start, tc.foundWaiting); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

// TestDeletedInTime: a Pod is deleted early enough for its grace period, but not in the first 10 s or, of a timeout that is short or
// shorter than the grace period, in the first half.
func TestDeletedInTime(t *testing.T) { // M13
	rapid.Check(t, func(t *rapid.T) {
		drain, timeout, gracePeriod := drawDrain(t)
		at, from := drain.DeleteAt(gracePeriod, nil), drain.Began
		if remaining := drain.Ends.Sub(drain.Began); remaining > 0 {
			from = from.Add(min(10*time.Second, remaining/2))
		}
		if half := start.Add(timeout / 2); gracePeriod > timeout && from.Before(half) {
			from = half
		}
		fits := !from.Add(gracePeriod).After(drain.Ends)
		if at.Before(from) || at.After(from) && drain.Ends.Sub(at) < gracePeriod || drain.Deletes && (drain.Shortage(gracePeriod) == "") != fits {
			t.Fatalf("of %s, %s are left for a grace period of %s", timeout, drain.Ends.Sub(at), gracePeriod)
		}
	})
}

func TestDeletedAtTimeout(t *testing.T) {
	verdict := func(behavior v1alpha1.DrainBehavior) rules.Verdict { return rules.Verdict{Behavior: behavior} }
	drain, skip, completes := verdict(v1alpha1.DrainBehaviorDrain), verdict(v1alpha1.DrainBehaviorSkip), verdict(v1alpha1.DrainBehaviorWaitCompleted)
	undecided := rules.Verdict{Undecided: "a rule can't be read"}
	for name, tc := range map[string]struct {
		podType v1alpha1.PodType
		own     rules.Verdict
		others  []rules.Verdict
		want    bool
	}{
		"M13: deletes a Pod that drains":                                            {v1alpha1.PodTypeDefault, drain, nil, true},
		"M13: deletes a Pod that must complete, since its Node is deleted":          {v1alpha1.PodTypeDefault, completes, nil, true},
		"M13: does not delete a Pod that a rule skips":                              {v1alpha1.PodTypeDefault, skip, nil, false},
		"M6: does not delete an undecided Pod":                                      {v1alpha1.PodTypeDefault, undecided, nil, false},
		"M13: does not delete Pods of DaemonSets":                                   {v1alpha1.PodTypeDaemonSet, drain, nil, false},
		"M13: does not delete static Pods":                                          {v1alpha1.PodTypeStatic, drain, nil, false},
		"M13: does not delete a Pod of unknown type":                                {"", drain, nil, false},
		"M13: deletes a Pod that another maintenance skips":                         {v1alpha1.PodTypeDefault, drain, []rules.Verdict{skip}, true},
		"M13: does not delete a Pod whose completion another maintenance waits for": {v1alpha1.PodTypeDefault, drain, []rules.Verdict{completes}, false},
		"M13: does not delete a Pod on which another maintenance is undecided":      {v1alpha1.PodTypeDefault, drain, []rules.Verdict{undecided}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := draintimeout.DeletedAtTimeout(tc.podType, tc.own, tc.others); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

// TestObservedByAnotherClock: a manager whose clock was ten minutes ahead has observed the timeout just before it lost the lease.
func TestObservedByAnotherClock(t *testing.T) {
	g := NewWithT(t)
	m := &v1alpha1.NodeMaintenance{}
	m.Spec.Stage, m.Spec.Evacuation.DrainTimeoutSeconds = v1alpha1.StageDrain, new(int32(300))
	m.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.StageDrain, StartTimestamp: metav1.NewTime(start)}}
	m.Status.DrainTimeout = draintimeout.Observe(m, start.Add(time.Minute+10*time.Minute))
	drain := draintimeout.DrainOf(m, nil, start.Add(2*time.Minute))
	g.Expect(drain.FinalAttemptAt(30*time.Second)).To(BeTemporally("<", drain.Ends), "M66, M96: the attempt is due before the Machine is released")
}
