package statefulset_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func set(replicas int32, changes ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "set"}, Spec: appsv1.StatefulSetSpec{Replicas: &replicas}}
	for _, change := range changes {
		change(s)
	}
	return s
}

// podsOf are the Pods of a StatefulSet, all ready.
func podsOf(s *appsv1.StatefulSet) (pods []corev1.Pod) {
	first := int32(0)
	if s.Spec.Ordinals != nil {
		first = s.Spec.Ordinals.Start
	}
	for n := first; n < first+*s.Spec.Replicas; n++ {
		name := fmt.Sprintf("db-%d", n)
		pods = append(pods, corev1.Pod{
			Spec: corev1.PodSpec{NodeName: "node-of-" + name},
			ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(begin.Add(-time.Hour)),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: s.UID, Controller: ptr.To(true)}},
			},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(begin.Add(-time.Hour)),
			}}},
		})
	}
	return pods
}

func waiting(names ...string) (all []statefulset.Waiting) {
	for _, name := range names {
		all = append(all, statefulset.Waiting{
			Name: name, UID: types.UID(name), Progress: begin, Deadline: begin.Add(30 * time.Minute), DrainStart: begin, Ordered: true,
		})
	}
	return all
}

func released(d statefulset.Decision) (pods []types.UID) {
	for _, report := range d.Reports {
		if report.Reason == "" {
			pods = append(pods, report.Pod)
		}
	}
	return pods
}

func unreadySince(name string, since time.Time) func(*statefulset.Observation) {
	return func(o *statefulset.Observation) {
		for i := range o.Pods {
			if o.Pods[i].Name == name {
				o.Pods[i].Status.Conditions[0].Status = corev1.ConditionFalse
				o.Pods[i].Status.Conditions[0].LastTransitionTime = metav1.NewTime(since)
			}
		}
	}
}

func without(name string) func(*statefulset.Observation) {
	return func(o *statefulset.Observation) {
		o.Pods = slices.DeleteFunc(o.Pods, func(p corev1.Pod) bool { return p.Name == name })
	}
}

// replacedAt replaces a Pod by one that was created at that time and is not ready.
func replacedAt(name string, at time.Time) func(*statefulset.Observation) {
	return func(o *statefulset.Observation) {
		for i := range o.Pods {
			if o.Pods[i].Name == name {
				o.Pods[i].CreationTimestamp = metav1.NewTime(at)
				o.Pods[i].Status.Conditions = nil // it has not been scheduled
			}
		}
	}
}

// unschedulableAt is replacedAt, and the scheduler has found no Node for the new Pod.
func unschedulableAt(name string, at time.Time) func(*statefulset.Observation) {
	return func(o *statefulset.Observation) {
		replacedAt(name, at)(o)
		for i := range o.Pods {
			if o.Pods[i].Name == name {
				o.Pods[i].Spec.NodeName = ""
				o.Pods[i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			}
		}
	}
}

func deletedAt(name string, at time.Time) func(*statefulset.Observation) {
	return func(o *statefulset.Observation) {
		for i := range o.Pods {
			if o.Pods[i].Name == name {
				o.Pods[i].DeletionTimestamp = ptr.To(metav1.NewTime(at.Add(10 * time.Minute)))
				o.Pods[i].DeletionGracePeriodSeconds = ptr.To[int64](600)
			}
		}
	}
}

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

func TestOrderIsABoundedCourtesy(t *testing.T) {
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
		{"E30: waits for another replica than the one that is unschedulable", anyChange(func(o *statefulset.Observation) {
			o.Set = set(4)
			o.Pods = podsOf(o.Set)
		}, unschedulableAt("db-2", begin.Add(2*time.Second)), unreadySince("db-3", begin.Add(5*time.Second))), 3 * time.Minute, []string{replica}},
		{"E30: does not wait for a missing replica while a lower one is unschedulable", anyChange(func(o *statefulset.Observation) {
			o.Set = set(4)
			o.Pods = podsOf(o.Set)
		}, unschedulableAt("db-2", begin.Add(2*time.Second)), without("db-3")), 0, nil},
		{"E30: waits 3 min for a replica that is being evicted", anyChange(func(o *statefulset.Observation) {
			o.Evicting = map[types.UID]time.Time{"db-2": begin.Add(5 * time.Second)}
		}), 3 * time.Minute, []string{replica}},
		{
			"E30: waits 3 min for a replica that terminates, whatever its grace period",
			anyChange(deletedAt("db-2", begin.Add(5*time.Second))), 3 * time.Minute, []string{replica},
		},
		{"E30: waits 3 min for each of two replicas", anyChange(func(o *statefulset.Observation) {
			o.Set = set(4)
			o.Pods = podsOf(o.Set)
		}, unreadySince("db-3", begin.Add(5*time.Second)), func(o *statefulset.Observation) {
			if !o.Now.Before(begin.Add(3 * time.Minute)) {
				unreadySince("db-2", begin.Add(3*time.Minute+5*time.Second))(o)
			}
		}), 6 * time.Minute, []string{replica, replica}},
		{
			"E30: waits 3 min for each of two replicas while other evacuators report progress on both", anyChange(func(o *statefulset.Observation) {
				o.Set = set(4)
				o.Pods = podsOf(o.Set)
				o.Evicting = map[types.UID]time.Time{"db-2": o.Now, "db-3": o.Now}
			}), 6 * time.Minute, []string{replica, replica},
		},
		{
			"E30: waits 3 min for each of two replicas that alternate between ready and unready", anyChange(func(o *statefulset.Observation) {
				o.Set = set(4)
				o.Pods = podsOf(o.Set)
			}, func(o *statefulset.Observation) {
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
	t.Run("E30: Pods of an unordered maintenance are released at once, and others of the StatefulSet wait", func(t *testing.T) {
		o := statefulset.Observation{Set: set(4), Pods: podsOf(set(4)), Waiting: waiting("db-0", "db-1", "db-2"), FirstDrain: begin, Now: begin.Add(time.Minute)}
		unreadySince("db-3", begin.Add(time.Second))(&o)
		o.Waiting[0].Ordered, o.Waiting[2].Ordered = false, false
		d := statefulset.Decide(o)
		if got := released(d); !slices.Equal(got, []types.UID{"db-0", "db-2"}) || len(d.Reports) != 3 {
			t.Errorf("got %+v", d.Reports)
		}
	})
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

// TestOrderIsBounded makes a replica unavailable in random ways: the next Pod is released within the courtesy times.
func TestOrderIsBounded(t *testing.T) {
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

func TestDecide(t *testing.T) {
	unready := func(name string) func(*statefulset.Observation) { return unreadySince(name, begin.Add(time.Second)) }
	for _, tc := range []struct {
		name    string
		set     *appsv1.StatefulSet
		waiting []string
		change  func(*statefulset.Observation)
		want    []types.UID
	}{
		{"E28: evicts the Pod with the highest ordinal first, compared as numbers", set(12), []string{"db-2", "db-10", "db-9"}, nil, []types.UID{"db-10"}},
		{"E28: waits until the StatefulSet has recreated the last Pod", set(3), []string{"db-1"}, without("db-2"), nil},
		{"E28: waits until the recreated Pod is ready", set(3), []string{"db-1"}, unready("db-2"), nil},
		{"E28: waits for a terminating Pod, ready or not", set(3), []string{"db-1"}, func(o *statefulset.Observation) {
			o.Pods[2].DeletionTimestamp = ptr.To(metav1.NewTime(begin))
		}, nil},
		{"E28: waits for a released Pod whose budget blocks the eviction", set(3), []string{"db-1"}, func(o *statefulset.Observation) {
			o.Evicting = map[types.UID]time.Time{"db-2": begin}
		}, nil},
		{"E28: evicts a Pod that is not ready itself", set(3), []string{"db-1"}, unready("db-1"), []types.UID{"db-1"}},
		{
			"E28: ignores a Pod with the name of a replica that the StatefulSet does not control",
			set(3), []string{"db-1"}, func(o *statefulset.Observation) { o.Pods[2].OwnerReferences = nil }, nil,
		},
		{"E30: does not wait for Pods beyond the replicas of the StatefulSet", set(2), []string{"db-1"}, func(o *statefulset.Observation) {
			o.Pods = append(o.Pods, podsOf(set(4))[2:]...)
			for i := range o.Pods[2:] {
				o.Pods[2+i].Status.Conditions = nil
			}
		}, []types.UID{"db-1"}},
		{
			"E28: respects the first ordinal of the StatefulSet",
			set(2, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }), []string{"db-5", "db-6"}, nil, []types.UID{"db-6"},
		},
		{
			"E28: releases all Pods with podManagementPolicy Parallel",
			set(3, func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }), []string{"db-0", "db-1"}, without("db-2"),
			[]types.UID{"db-0", "db-1"},
		},
		{"E28: releases all Pods with the update strategy OnDelete", set(3, func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		}), []string{"db-0", "db-1"}, without("db-2"), []types.UID{"db-0", "db-1"}},
		{"E28: releases all Pods of a StatefulSet that does not exist", nil, []string{"db-0", "db-1"}, nil, []types.UID{"db-0", "db-1"}},
		{"E28: reports nothing without waiting Pods", set(3), nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := statefulset.Observation{Set: tc.set, Waiting: waiting(tc.waiting...), FirstDrain: begin, Now: begin}
			if tc.set != nil {
				o.Pods = podsOf(tc.set)
			}
			if tc.change != nil {
				tc.change(&o)
			}
			d := statefulset.Decide(o)
			if got := released(d); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if len(tc.want) == 0 && len(tc.waiting) > 0 && (d.RequeueAt.IsZero() || len(d.Reports) != len(tc.waiting)) {
				t.Errorf("each waiting Pod needs a report, and the decision a time of the next one: %+v", d)
			}
		})
	}
	t.Run("E28: waits a moment for the Evacuations of Pods with higher ordinals that are drained, on any Node", func(t *testing.T) {
		o := statefulset.Observation{Set: set(3), Pods: podsOf(set(3)), Waiting: waiting("db-0", "db-1"), FirstDrain: begin, Now: begin}
		if got := released(statefulset.Decide(o)); !slices.Equal(got, []types.UID{"db-1"}) {
			t.Fatalf("db-2 is not drained: got %v", got)
		}
		o.Coming = sets.New[types.UID]("db-0", "db-1", "db-2")
		d := statefulset.Decide(o)
		if len(d.Reports) > 0 || !d.RequeueAt.After(o.Now) {
			t.Fatalf("got %+v", d)
		}
		all := o
		all.Waiting = waiting("db-0", "db-1", "db-2")
		if got := released(statefulset.Decide(all)); !slices.Equal(got, []types.UID{"db-2"}) {
			t.Fatalf("got %v", got)
		}
		o.Now = d.RequeueAt
		if got := released(statefulset.Decide(o)); !slices.Equal(got, []types.UID{"db-1"}) {
			t.Errorf("got %v", got)
		}
	})
	t.Run("E28: reports a wait once, and progress again before the progress deadline expires", func(t *testing.T) {
		o := statefulset.Observation{
			Set: set(3), Pods: podsOf(set(3)), Waiting: waiting("db-0", "db-1"), Evicting: map[types.UID]time.Time{"db-2": begin}, FirstDrain: begin, Now: begin,
		}
		for _, report := range statefulset.Decide(o).Reports {
			for i := range o.Waiting {
				if o.Waiting[i].UID == report.Pod {
					o.Waiting[i].Message = report.Message
				}
			}
		}
		if again := statefulset.Decide(o); len(again.Reports) > 0 {
			t.Errorf("reported twice: %v", again.Reports)
		}
		o.Evicting, o.Now = nil, begin.Add(10*time.Minute)
		reports := statefulset.Decide(o).Reports
		if len(reports) != 2 || reports[1].Reason != "" || reports[0].Reason == "" || reports[0].Pod != "db-0" || reports[0].Message == "" {
			t.Fatalf("got %v", reports)
		}
		e := &v1alpha1.Evacuation{}
		reports[0].Apply(e, o.Now)
		if e.Status.EvacuationProgressTimestamp == nil || e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
}

func TestHigherOrdinalAfterWait(t *testing.T) {
	t.Run("E28: a Pod that has waited for a replica also waits for a Pod with a higher ordinal whose eviction was requested later", func(t *testing.T) {
		s := set(4)
		o := statefulset.Observation{Set: s, Pods: podsOf(s), Waiting: waiting("db-1"), FirstDrain: begin, Now: begin.Add(5 * time.Second)}
		unreadySince("db-0", o.Now)(&o)
		o.Waiting[0].Message, o.Pods, o.Now = statefulset.Decide(o).Reports[0].Message, podsOf(s), begin.Add(7*time.Second)
		o.Waiting = append(o.Waiting, waiting("db-3")...)
		d := statefulset.Decide(o)
		if got := released(d); !slices.Equal(got, []types.UID{"db-3"}) {
			t.Fatalf("released %v", got)
		}
		o.Evicting = map[types.UID]time.Time{}
		for _, report := range d.Reports { // the manager may stop after each of them, or fail to store the next one
			if report.Reason == "" {
				o.Waiting, o.Evicting[report.Pod] = o.Waiting[:1], o.Now
			} else {
				o.Waiting[0].Message = report.Message
			}
			if got := released(statefulset.Decide(o)); slices.Contains(got, "db-1") {
				t.Errorf("released %v after the reports %v", got, d.Reports)
			}
		}
	})
}

// TestOneAtATime evicts Pods with a random order of events: no second Pod is released before the first one is replaced and ready.
func TestOneAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := set(rapid.Int32Range(1, 6).Draw(t, "replicas"))
		o := statefulset.Observation{Set: s, Pods: podsOf(s), Evicting: map[types.UID]time.Time{}, FirstDrain: begin, Now: begin.Add(time.Minute)}
		for i := range o.Pods {
			if rapid.Bool().Draw(t, "waits") {
				o.Waiting = append(o.Waiting, waiting(o.Pods[i].Name)...)
			}
		}
		all, order := len(o.Waiting), []types.UID{}
		for range 60 {
			switch rapid.SampledFrom([]string{"decide", "evict", "ready"}).Draw(t, "action") {
			case "decide":
				for _, uid := range released(statefulset.Decide(o)) {
					o.Waiting = slices.DeleteFunc(o.Waiting, func(w statefulset.Waiting) bool { return w.UID == uid })
					o.Evicting[uid] = o.Now
					order = append(order, uid)
				}
			case "evict":
				for i := range o.Pods {
					if _, evicting := o.Evicting[o.Pods[i].UID]; evicting {
						delete(o.Evicting, o.Pods[i].UID)
						o.Pods[i].UID += "-new"
						o.Pods[i].CreationTimestamp = metav1.NewTime(o.Now)
						o.Pods[i].Status.Conditions[0].Status = corev1.ConditionFalse
					}
				}
			case "ready":
				for i := range o.Pods {
					o.Pods[i].Status.Conditions[0].Status = corev1.ConditionTrue
				}
			}
			away := len(o.Evicting)
			for i := range o.Pods {
				if o.Pods[i].Status.Conditions[0].Status != corev1.ConditionTrue {
					away++
				}
			}
			if away > 1 {
				t.Fatalf("%d Pods are unavailable", away)
			}
		}
		if !slices.IsSortedFunc(order, func(a, b types.UID) int { return -slices.Compare([]byte(a), []byte(b)) }) || len(order)+len(o.Waiting) != all {
			t.Fatalf("order %v, waiting %v", order, o.Waiting)
		}
	})
}

// The highest of three Pods waits for one unready replica after the other, each shorter than MaxWait.
func TestWaitingPodsKeepTheirProgressDeadline(t *testing.T) {
	t.Run("E28: renews the progress of Pods with lower ordinals while the next one waits for replicas", func(t *testing.T) {
		s := set(8)
		o := statefulset.Observation{Set: s, Waiting: waiting("db-0", "db-1"), FirstDrain: begin}
		for i := range o.Waiting {
			o.Waiting[i].Deadline = begin.Add(10 * time.Minute)
		}
		for at := 5 * time.Second; at < 15*time.Minute; at += time.Second {
			o.Now, o.Pods = begin.Add(at), podsOf(s)
			unready := 7 - int(at/(150*time.Second))
			unreadySince(fmt.Sprintf("db-%d", unready), begin.Add(time.Duration(7-unready)*150*time.Second+time.Second))(&o)
			for _, report := range statefulset.Decide(o).Reports {
				for i := range o.Waiting {
					if o.Waiting[i].UID == report.Pod {
						o.Waiting[i].Message, o.Waiting[i].Progress, o.Waiting[i].Deadline = report.Message, o.Now, o.Now.Add(10*time.Minute)
					}
				}
			}
			for _, pod := range o.Waiting {
				if !o.Now.Before(pod.Deadline) {
					t.Fatalf("%s has missed its deadline after %s: %s", pod.Name, at, pod.Message)
				}
			}
		}
	})
}
