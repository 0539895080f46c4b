package statefulset_test

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
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
			Name: name, UID: types.UID(name), Progress: begin, RenewAt: evacuation.RenewAt(begin, begin.Add(30*time.Minute)), DrainStart: begin, Ordered: true,
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

// fourReplicas adds a replica to the three of waits.
func fourReplicas(o *statefulset.Observation) {
	o.Set = set(4)
	o.Pods = podsOf(o.Set)
}
