package statefulset_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
)

// waits simulates the evacuator of the Pods db-0 and db-1, whose drain began at begin, until one of them is released. It stores the
// reports of each decision. It returns how long they waited for Pods that the changes make unavailable, and the reported reasons.
func waits(t *testing.T, changes ...func(*statefulset.Observation)) (waited time.Duration, reasons []string) {
	t.Helper()
	s := set(3)
	o := statefulset.Observation{Set: s, Pods: podsOf(s), Waiting: waiting("db-0", "db-1"), FirstDrain: begin, Now: begin.Add(5 * time.Second)}
	for i := range o.Waiting {
		o.Waiting[i].Progress = o.Now
	}
	from := o.Now
	for o.Now.Before(begin.Add(time.Hour)) {
		for _, change := range changes {
			change(&o)
		}
		d := statefulset.Decide(o)
		if pods := released(d); len(pods) > 0 {
			if !slices.Equal(pods, []types.UID{"db-1"}) {
				t.Fatalf("released %v", pods)
			}
			return o.Now.Sub(from), reasons
		}
		for _, report := range d.Reports {
			at := slices.IndexFunc(o.Waiting, func(w statefulset.Waiting) bool { return w.UID == report.Pod })
			o.Waiting[at].Message, o.Waiting[at].Progress = report.Message, o.Now.Truncate(time.Second)
			if report.Pod == "db-1" {
				reasons = append(reasons, report.Reason)
			}
		}
		if !d.RequeueAt.After(o.Now) {
			t.Fatalf("the next decision is at %s, now is %s", d.RequeueAt, o.Now)
		}
		o.Now = d.RequeueAt
	}
	t.Fatal("no Pod was released in an hour")
	return 0, nil
}

func TestWait(t *testing.T) {
	const replica, missing = v1alpha1.ReasonWaitingForReplica, v1alpha1.ReasonWaitingForMissingReplica
	year := 365 * 24 * time.Hour
	anyChange := func(changes ...func(*statefulset.Observation)) []func(*statefulset.Observation) { return changes }
	for _, tc := range []struct {
		name    string
		changes []func(*statefulset.Observation)
		want    time.Duration
		reasons []string
	}{
		{"E30: does not wait for a replica that was not ready before the drain", anyChange(unreadySince("db-2", begin.Add(-time.Second))), 0, nil},
		{"E30: does not wait for a replica that was pending before the drain", anyChange(replacedAt("db-2", begin.Add(-time.Minute))), 0, nil},
		{"E30: does not wait for a replica that was created in the second in which the drain began", anyChange(replacedAt("db-2", begin)), 0, nil},
		{
			"E30: waits for a replica that was deleted in the second in which the drain began",
			anyChange(deletedAt("db-2", begin)), 3*time.Minute - 5*time.Second, []string{replica},
		},
		{"E30: does not wait for a replica that was deleted before the drain", anyChange(deletedAt("db-2", begin.Add(-time.Second))), 0, nil},
		{"E30: waits 10 s for a replica that does not exist", anyChange(without("db-2")), 10 * time.Second, []string{missing}},
		{
			"E30: waits 3 min for a replica that is not ready since the drain",
			anyChange(unreadySince("db-2", begin.Add(5*time.Second))), 3 * time.Minute, []string{replica},
		},
		{
			"E30: waits 3 min for a replacement from its creation",
			anyChange(replacedAt("db-2", begin.Add(2*time.Second))), 3*time.Minute - 3*time.Second, []string{replica},
		},
		{"E30: does not wait for a replacement that the scheduler reports as unschedulable", anyChange(unschedulableAt("db-2", begin.Add(2*time.Second))), 0, nil},
		{"E30: stops waiting for a replacement when the scheduler reports it as unschedulable", anyChange(func(o *statefulset.Observation) {
			if replacedAt("db-2", begin.Add(2*time.Second))(o); o.Now.After(begin.Add(20 * time.Second)) {
				unschedulableAt("db-2", begin.Add(2*time.Second))(o)
			}
		}), 16 * time.Second, []string{replica}},
		{
			"E30: waits for a replacement for which the scheduler preempts other Pods",
			anyChange(unschedulableAt("db-2", begin.Add(2*time.Second)), func(o *statefulset.Observation) {
				o.Pods[2].Status.NominatedNodeName = "two"
			}), 3*time.Minute - 3*time.Second, []string{replica},
		},
		{"E30: waits for a replacement that has scheduling gates", anyChange(unschedulableAt("db-2", begin.Add(2*time.Second)), func(o *statefulset.Observation) {
			o.Pods[2].Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
		}), 3*time.Minute - 3*time.Second, []string{replica}},
		{
			"E30: waits for another replica than the one that is unschedulable",
			anyChange(fourReplicas, unschedulableAt("db-2", begin.Add(2*time.Second)), unreadySince("db-3", begin.Add(5*time.Second))),
			3 * time.Minute, []string{replica},
		},
		{
			"E30: does not wait for a missing replica while a lower one is unschedulable",
			anyChange(fourReplicas, unschedulableAt("db-2", begin.Add(2*time.Second)), without("db-3")), 0, nil,
		},
		{"E30: waits 3 min for a replica that is being evicted", anyChange(func(o *statefulset.Observation) {
			o.Evicting = map[types.UID]time.Time{"db-2": begin.Add(5 * time.Second)}
		}), 3 * time.Minute, []string{replica}},
		{
			"E30: waits 3 min for a replica that terminates, whatever its grace period",
			anyChange(deletedAt("db-2", begin.Add(5*time.Second))), 3 * time.Minute, []string{replica},
		},
		{"E30: waits 3 min for each of two replicas", anyChange(fourReplicas, unreadySince("db-3", begin.Add(5*time.Second)), func(o *statefulset.Observation) {
			if !o.Now.Before(begin.Add(3 * time.Minute)) {
				unreadySince("db-2", begin.Add(3*time.Minute+5*time.Second))(o)
			}
		}), 6 * time.Minute, []string{replica, replica}},
		{
			"E30: waits 3 min for each of two replicas while other evacuators report progress on both", anyChange(fourReplicas, func(o *statefulset.Observation) {
				o.Evicting = map[types.UID]time.Time{"db-2": o.Now, "db-3": o.Now}
			}), 6 * time.Minute, []string{replica, replica},
		},
		{
			"E30: waits 3 min for each of two replicas that alternate between ready and unready", anyChange(fourReplicas, func(o *statefulset.Observation) {
				unreadySince("db-2", o.Now)(o)
				unreadySince("db-3", o.Now)(o)
			}), 6 * time.Minute, []string{replica, replica},
		},
		{
			"E30: a replica that alternates between ready and unready does not prolong the wait",
			anyChange(func(o *statefulset.Observation) { unreadySince("db-2", o.Now)(o) }), 3 * time.Minute, []string{replica},
		},
		{"E30: a readiness transition in the future does not prolong the wait", anyChange(unreadySince("db-2", begin.Add(year))), 3 * time.Minute, []string{replica}},
		{"E30: a deletion in the future does not prolong the wait", anyChange(deletedAt("db-2", begin.Add(year))), 3 * time.Minute, []string{replica}},
		{"E30: keeps waiting for a replica that does not exist for a moment after its eviction", anyChange(func(o *statefulset.Observation) {
			if o.Now.Before(begin.Add(2 * time.Minute)) {
				deletedAt("db-2", begin.Add(5*time.Second))(o)
			} else {
				without("db-2")(o)
			}
		}), 3 * time.Minute, []string{replica}},
		{
			"E30: does not wait for a missing replica while a lower ordinal is not ready",
			anyChange(without("db-2"), unreadySince("db-0", begin.Add(-time.Hour))), 0, nil,
		},
		{
			"E30: does not wait for a missing replica while the next Pod itself is not ready",
			anyChange(without("db-2"), unreadySince("db-1", begin.Add(-time.Hour))), 0, nil,
		},
		{
			"E30: waits for a replica that another drain may have evicted shortly before",
			anyChange(func(o *statefulset.Observation) { o.FirstDrain = begin.Add(-time.Minute) }, replacedAt("db-2", begin.Add(-10*time.Second))),
			3*time.Minute - 15*time.Second, []string{replica},
		},
		{
			"E30: does not wait for a replica that was created before the other drain and is not ready",
			anyChange(func(o *statefulset.Observation) { o.FirstDrain = begin.Add(-time.Minute) }, unreadySince("db-2", begin.Add(-10*time.Second))), 0, nil,
		},
		{
			"E30: does not wait for a replica that was created long before, while another drain was in progress",
			anyChange(func(o *statefulset.Observation) { o.FirstDrain = begin.Add(-time.Hour) }, replacedAt("db-2", begin.Add(-31*time.Second))), 0, nil,
		},
		{"E30: the end of the other drain does not end the wait", anyChange(replacedAt("db-2", begin.Add(-10*time.Second)), func(o *statefulset.Observation) {
			if o.FirstDrain = begin; o.Now.Before(begin.Add(time.Minute)) {
				o.FirstDrain = begin.Add(-time.Minute)
			}
		}), 3*time.Minute - 15*time.Second, []string{replica}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			waited, reasons := waits(t, tc.changes...)
			if waited != tc.want || !slices.Equal(reasons, tc.reasons) {
				t.Errorf("waited %s, reported %v; want %s, %v", waited, reasons, tc.want, tc.reasons)
			}
		})
	}
}

func TestReport(t *testing.T) {
	const replica = v1alpha1.ReasonWaitingForReplica
	t.Run("E30: names the replica on the Evacuation, in a condition that is removed when the Pod is released", func(t *testing.T) {
		o := statefulset.Observation{Set: set(2), Pods: podsOf(set(2)), Waiting: waiting("db-0"), FirstDrain: begin, Now: begin.Add(time.Minute)}
		unreadySince("db-1", begin.Add(time.Second))(&o)
		report, e := statefulset.Decide(o).Reports[0], &v1alpha1.Evacuation{}
		report.Apply(e, o.Now)
		if e.Status.Message != "Waiting at most 3m0s for Pod shop/db-1 of StatefulSet shop/db to be replaced and ready." || statefulset.WaitReason(e) != replica {
			t.Errorf("got %+v", e.Status)
		}
		statefulset.Report{Message: "next"}.Apply(e, o.Now)
		if statefulset.WaitReason(e) != "" || !e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
	t.Run("E30: a list of conditions that other clients have filled does not prevent the report", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		for i := range 32 {
			e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{Type: fmt.Sprint("Other", i)})
		}
		statefulset.Report{Reason: replica, Message: "waiting"}.Apply(e, begin)
		if len(e.Status.Conditions) != 32 || e.Status.Message != "waiting" {
			t.Errorf("got %+v", e.Status)
		}
	})
	t.Run("E30: ignores a reason that another client has written", func(t *testing.T) {
		e := &v1alpha1.Evacuation{}
		e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EvacuationOrdered, Status: metav1.ConditionFalse, Reason: "Other"}}
		if got := statefulset.WaitReason(e); got != "" {
			t.Errorf("got %s", got)
		}
	})
}

// TestMissingReplicas covers a StatefulSet that lacks replicas, for example because of a quota: a Pod waits only for the replica that is
// created next.
func TestMissingReplicas(t *testing.T) {
	for _, replicas := range []int32{4, 1000, math.MaxInt32} {
		t.Run(fmt.Sprintf("E30: %d replicas of which three exist", replicas), func(t *testing.T) {
			waited, reasons := waits(t, func(o *statefulset.Observation) { o.Set.Spec.Replicas = &replicas })
			if waited > 10*time.Second || !slices.Equal(reasons, []string{v1alpha1.ReasonWaitingForMissingReplica}) {
				t.Errorf("waited %s: %v", waited, reasons)
			}
		})
	}
}

// TestRandomWait makes a replica unavailable in random ways: the next Pod waits no longer than MaxWait and the ten seconds for a replica
// that does not exist.
func TestRandomWait(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		at := func(what string) time.Time {
			return begin.Add(time.Duration(rapid.IntRange(-600, 600).Draw(r, what)) * time.Second)
		}
		waited, _ := waits(t, func(o *statefulset.Observation) {
			o.Pods = podsOf(o.Set)
			delete(o.Evicting, "db-2")
			switch rapid.SampledFrom([]string{"unready", "replaced", "deleted", "gone", "evicting"}).Draw(r, "state") {
			case "unready":
				unreadySince("db-2", at("unready"))(o)
			case "replaced":
				replacedAt("db-2", at("created"))(o)
			case "deleted":
				deletedAt("db-2", at("deleted"))(o)
			case "gone":
				without("db-2")(o)
			case "evicting":
				o.Evicting = map[types.UID]time.Time{"db-2": at("evicting")}
			}
		})
		if waited > statefulset.MaxWait+10*time.Second {
			r.Fatalf("waited %s", waited)
		}
	})
}
