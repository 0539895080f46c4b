package statefulsets_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/statefulsets"
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
			Spec:       corev1.PodSpec{NodeName: "node-of-" + name},
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: s.UID, Controller: ptr.To(true)}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	return pods
}

func waiting(names ...string) (all []statefulsets.Waiting) {
	for _, name := range names {
		all = append(all, statefulsets.Waiting{Name: name, UID: types.UID(name), Progress: begin, Deadline: begin.Add(30 * time.Minute)})
	}
	return all
}

func released(d statefulsets.Decision) (pods []types.UID) {
	for _, report := range d.Reports {
		if report.Release {
			pods = append(pods, report.Pod)
		}
	}
	return pods
}

func TestDecide(t *testing.T) {
	unready := func(name string) func(*statefulsets.Observation) {
		return func(o *statefulsets.Observation) {
			for i := range o.Pods {
				if o.Pods[i].Name == name {
					o.Pods[i].Status.Conditions[0].Status = corev1.ConditionFalse
				}
			}
		}
	}
	without := func(name string) func(*statefulsets.Observation) {
		return func(o *statefulsets.Observation) {
			o.Pods = slices.DeleteFunc(o.Pods, func(p corev1.Pod) bool { return p.Name == name })
		}
	}
	for _, tc := range []struct {
		name    string
		set     *appsv1.StatefulSet
		waiting []string
		change  func(*statefulsets.Observation)
		want    []types.UID
	}{
		{"E28: the highest ordinal goes first, as a number", set(12), []string{"db-2", "db-10", "db-9"}, nil, []types.UID{"db-10"}},
		{"E28: the next one waits until the Pod is back", set(3), []string{"db-1"}, without("db-2"), nil},
		{"E28: and until it is ready", set(3), []string{"db-1"}, unready("db-2"), nil},
		{"E28: a Pod that terminates doesn't serve, ready or not", set(3), []string{"db-1"}, func(o *statefulsets.Observation) {
			o.Pods[2].DeletionTimestamp = ptr.To(metav1.Now())
		}, nil},
		{"E28: nor does one whose turn has come, and that its budget still holds", set(3), []string{"db-1"}, func(o *statefulsets.Observation) {
			o.Going = map[types.UID]bool{"db-2": true}
		}, nil},
		{"E28: one that isn't ready itself goes all the same", set(3), []string{"db-1"}, unready("db-1"), []types.UID{"db-1"}},
		{"E28: somebody else's Pod of that name is none of the StatefulSet", set(3), []string{"db-1"}, func(o *statefulsets.Observation) { o.Pods[2].OwnerReferences = nil }, nil},
		{"E28: ordinals may start anywhere", set(2, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }), []string{"db-5", "db-6"}, nil, []types.UID{"db-6"}},
		{"E28: Parallel goes at once", set(3, func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }), []string{"db-0", "db-1"}, without("db-2"), []types.UID{"db-0", "db-1"}},
		{"E28: OnDelete isn't touched: the eviction takes over at once", set(3, func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		}), []string{"db-0", "db-1"}, without("db-2"), []types.UID{"db-0", "db-1"}},
		{"E28: Pods whose StatefulSet is gone go at once", nil, []string{"db-0", "db-1"}, nil, []types.UID{"db-0", "db-1"}},
		{"E28: nobody waits", set(3), nil, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := statefulsets.Observation{Set: tc.set, Waiting: waiting(tc.waiting...), Now: begin}
			if tc.set != nil {
				o.Pods = podsOf(tc.set)
			}
			if tc.change != nil {
				tc.change(&o)
			}
			d := statefulsets.Decide(o)
			if got := released(d); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if len(tc.want) == 0 && len(tc.waiting) > 0 && (d.LookAgain.IsZero() || len(d.Reports) != len(tc.waiting)) {
				t.Errorf("whoever waits is told, and looked after: %+v", d)
			}
		})
	}
	t.Run("E28: those of the same Node with higher ordinals have a moment to be asked for", func(t *testing.T) {
		o := statefulsets.Observation{Set: set(3), Pods: podsOf(set(3)), Waiting: waiting("db-0", "db-1"), Now: begin}
		for i := range o.Pods {
			o.Pods[i].Spec.NodeName = "one"
		}
		d := statefulsets.Decide(o)
		if len(d.Reports) > 0 || !d.LookAgain.After(o.Now) {
			t.Fatalf("got %+v", d)
		}
		o.Now = d.LookAgain
		if got := released(statefulsets.Decide(o)); !slices.Equal(got, []types.UID{"db-1"}) {
			t.Errorf("got %v", got)
		}
	})
	t.Run("E28: it is told once, and anew when there is progress before the turn ends in silence", func(t *testing.T) {
		o := statefulsets.Observation{Set: set(3), Pods: podsOf(set(3)), Waiting: waiting("db-0", "db-1"), Going: map[types.UID]bool{"db-2": true}, Now: begin}
		for _, report := range statefulsets.Decide(o).Reports {
			for i := range o.Waiting {
				if o.Waiting[i].UID == report.Pod {
					o.Waiting[i].Message = report.Message
				}
			}
		}
		if again := statefulsets.Decide(o); len(again.Reports) > 0 {
			t.Errorf("told twice: %v", again.Reports)
		}
		o.Going, o.Now = nil, begin.Add(10*time.Minute)
		reports := statefulsets.Decide(o).Reports
		if len(reports) != 2 || !reports[0].Release || reports[1].Release || reports[1].Pod != "db-0" || reports[1].Message == "" {
			t.Fatalf("got %v", reports)
		}
		e := &v1alpha1.Evacuation{}
		reports[1].Apply(e, o.Now)
		if e.Status.EvacuationProgressTimestamp == nil || e.Status.ActiveEvacuatorCompleted {
			t.Errorf("got %+v", e.Status)
		}
	})
}

// TestOneAtATime has Pods leave in whatever order of events: never is a second one released while the first isn't back.
func TestOneAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := set(rapid.Int32Range(1, 6).Draw(t, "replicas"))
		o := statefulsets.Observation{Set: s, Pods: podsOf(s), Going: map[types.UID]bool{}, Now: begin}
		for i := range o.Pods {
			if rapid.Bool().Draw(t, "leaves") {
				o.Waiting = append(o.Waiting, waiting(o.Pods[i].Name)...)
			}
		}
		all, order := len(o.Waiting), []types.UID{}
		for range 60 {
			switch rapid.SampledFrom([]string{"decide", "evict", "ready"}).Draw(t, "action") {
			case "decide":
				for _, uid := range released(statefulsets.Decide(o)) {
					o.Waiting = slices.DeleteFunc(o.Waiting, func(w statefulsets.Waiting) bool { return w.UID == uid })
					o.Going[uid] = true
					order = append(order, uid)
				}
			case "evict":
				for i := range o.Pods {
					if uid := o.Pods[i].UID; o.Going[uid] {
						delete(o.Going, uid)
						o.Pods[i].UID += "-new"
						o.Pods[i].Status.Conditions[0].Status = corev1.ConditionFalse
					}
				}
			case "ready":
				for i := range o.Pods {
					o.Pods[i].Status.Conditions[0].Status = corev1.ConditionTrue
				}
			}
			away := len(o.Going)
			for i := range o.Pods {
				if o.Pods[i].Status.Conditions[0].Status != corev1.ConditionTrue {
					away++
				}
			}
			if away > 1 {
				t.Fatalf("%d are away", away)
			}
		}
		if !slices.IsSortedFunc(order, func(a, b types.UID) int { return -slices.Compare([]byte(a), []byte(b)) }) || len(order)+len(o.Waiting) != all {
			t.Fatalf("order %v, waiting %v", order, o.Waiting)
		}
	})
}
