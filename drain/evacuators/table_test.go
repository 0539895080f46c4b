package evacuators_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuators"
)

func TestSubjectFor(t *testing.T) { // E4, R38, R41
	resolved, problems := evacuation.Resolve(evacuation.Subject{
		Annotations: map[string]string{v1alpha1.EvacuatorPriorityAnnotationPrefix + "example.com": "10000/controller"},
		BuiltIn:     evacuators.SubjectFor(&corev1.Pod{}, v1alpha1.PodTypeDaemonSet, v1alpha1.SharedEvacuationPolicy{Surge: v1alpha1.SurgeAlways}).BuiltIn,
	})
	if len(resolved) != 1 || resolved[0].EvacuatorClass != v1alpha1.EvacuatorClassDaemonSet || resolved[0].Priority != 10000 || *resolved[0].Role != "controller" {
		t.Errorf("evacuators of a Pod of a DaemonSet: %v", resolved)
	}
	if len(problems) != 1 {
		t.Errorf("an annotated controller is not reported: %v", problems)
	}
	for _, podType := range []v1alpha1.PodType{"", v1alpha1.PodTypeDefault, v1alpha1.PodTypeStatic} {
		subject := evacuators.SubjectFor(&corev1.Pod{}, podType, v1alpha1.SharedEvacuationPolicy{Surge: v1alpha1.SurgeAlways})
		if len(subject.BuiltIn) > 0 {
			t.Errorf("evacuators of a Pod of type %q: %v", podType, subject.BuiltIn)
		}
	}
}
