package evacuators_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

func TestSubjectOf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + "silent.example.com": "100"}}}
	resolved := func(annotations map[string]string) []v1alpha1.Evacuator {
		e := &v1alpha1.Evacuation{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
		all, _ := evacuation.Resolve(evacuators.SubjectOf(e, pod, v1alpha1.PodTypeDefault, evacuation.Terms{}))
		return all
	}
	t.Run("E4: with evacuators BuiltIn, annotated classes are ignored whenever the Pod is resolved", func(t *testing.T) {
		if got := resolved(map[string]string{v1alpha1.EvacuatorsPolicyAnnotation: "BuiltIn"}); len(got) != 0 {
			t.Errorf("got %v", got)
		}
		if got := resolved(nil); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("E28: orders a Pod of a StatefulSet only if a NodeMaintenance of its Node requests it, also in an Evacuation of another creator", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", Controller: new(true),
		}}}}
		classes := func(terms evacuation.Terms) int {
			all, _ := evacuation.Resolve(evacuators.SubjectOf(&v1alpha1.Evacuation{}, pod, v1alpha1.PodTypeDefault, terms))
			return len(all)
		}
		if unordered, ordered := classes(evacuation.Terms{}), classes(evacuation.Terms{Ordered: true}); unordered != 0 || ordered != 1 {
			t.Errorf("%d evacuators without an order, %d with one", unordered, ordered)
		}
	})
}

func TestLater(t *testing.T) {
	const deployment = v1alpha1.EvacuatorClassDeployment
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels:          map[string]string{"pod-template-hash": "5d4f"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d4f", Controller: new(true)}},
	}}
	requested := &v1alpha1.NodeMaintenance{}
	requested.Spec.Evacuation.Surge = v1alpha1.SurgeAlways
	for name, tc := range map[string]struct {
		active  string
		podType v1alpha1.PodType
		all     []*v1alpha1.NodeMaintenance
		later   int
	}{
		"E80: the evacuator of Deployments if a surge is requested": {"", v1alpha1.PodTypeDefault, []*v1alpha1.NodeMaintenance{requested}, 1},
		"E80: not if none is requested":                             {"", v1alpha1.PodTypeDefault, nil, 0},
		"E80: not for a Pod that it does not serve":                 {"", v1alpha1.PodTypeStatic, []*v1alpha1.NodeMaintenance{requested}, 0},
		"E80: not after another evacuator":                          {"a.example.com", v1alpha1.PodTypeDefault, []*v1alpha1.NodeMaintenance{requested}, 0},
		"E80: while it is active, also if none is requested":        {deployment, v1alpha1.PodTypeDefault, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := &v1alpha1.Evacuation{}
			if tc.active != "" {
				e.Status.ActiveEvacuatorClass = &tc.active
			}
			later := evacuators.Later(e, pod, tc.podType, tc.all)
			if len(later) != tc.later || len(later) > 0 && later[0].EvacuatorClass != deployment {
				t.Errorf("got %v", later)
			}
		})
	}
}
