package statefulset_test

import (
	"fmt"
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
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulset"
)

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
	t.Run("E30: Pods of an unordered maintenance are released at once, and others of the StatefulSet wait", func(t *testing.T) {
		o := statefulset.Observation{Set: set(4), Pods: podsOf(set(4)), Waiting: waiting("db-0", "db-1", "db-2"), FirstDrain: begin, Now: begin.Add(time.Minute)}
		unreadySince("db-3", begin.Add(time.Second))(&o)
		o.Waiting[0].Ordered, o.Waiting[2].Ordered = false, false
		d := statefulset.Decide(o)
		if got := released(d); !slices.Equal(got, []types.UID{"db-0", "db-2"}) || len(d.Reports) != 3 {
			t.Errorf("got %+v", d.Reports)
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
		deadlines := map[types.UID]time.Time{}
		report := func(pod *statefulset.Waiting, message string, now time.Time) {
			deadlines[pod.UID] = now.Add(10 * time.Minute)
			pod.Message, pod.Progress, pod.RenewAt = message, now, evacuation.RenewAt(now, deadlines[pod.UID])
		}
		for i := range o.Waiting {
			report(&o.Waiting[i], "", begin)
		}
		for at := 5 * time.Second; at < 15*time.Minute; at += time.Second {
			o.Now, o.Pods = begin.Add(at), podsOf(s)
			unready := 7 - int(at/(150*time.Second))
			unreadySince(fmt.Sprintf("db-%d", unready), begin.Add(time.Duration(7-unready)*150*time.Second+time.Second))(&o)
			for _, made := range statefulset.Decide(o).Reports {
				for i := range o.Waiting {
					if o.Waiting[i].UID == made.Pod {
						report(&o.Waiting[i], made.Message, o.Now)
					}
				}
			}
			for _, pod := range o.Waiting {
				if !o.Now.Before(deadlines[pod.UID]) {
					t.Fatalf("%s has missed its deadline after %s: %s", pod.Name, at, pod.Message)
				}
			}
		}
	})
}
