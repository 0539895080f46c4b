package surge_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/surge"
)

func TestPolicyFor(t *testing.T) {
	const never, onRequest, single, always = v1alpha1.SurgeNever, v1alpha1.SurgeOnRequest, v1alpha1.SurgeIfSingleReplica, v1alpha1.SurgeAlways
	for _, test := range []struct {
		annotation string
		policies   []v1alpha1.SurgePolicy
		want       v1alpha1.SurgePolicy
	}{
		{"10000/controller", nil, never},
		{"10000/controller", []v1alpha1.SurgePolicy{never}, never},
		{"10000/controller", []v1alpha1.SurgePolicy{onRequest}, always},
		{"", []v1alpha1.SurgePolicy{onRequest}, never},
		{"10000", []v1alpha1.SurgePolicy{onRequest}, never},
		{"10000/controller ", []v1alpha1.SurgePolicy{onRequest}, never},
		{"", []v1alpha1.SurgePolicy{onRequest, single}, single},
		{"10000/controller", []v1alpha1.SurgePolicy{single, onRequest}, always},
		{"", []v1alpha1.SurgePolicy{single, never}, single},
		{"", []v1alpha1.SurgePolicy{always, single}, always},
	} {
		t.Run(fmt.Sprintf("E32: Pod annotation %q with maintenance policies %v", test.annotation, test.policies), func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
			if test.annotation != "" {
				pod.Annotations["evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io"] = test.annotation
			}
			var draining []*v1alpha1.NodeMaintenance
			for _, policy := range test.policies {
				m := &v1alpha1.NodeMaintenance{}
				m.Spec.Evacuation.Surge = policy
				draining = append(draining, m)
			}
			if got := surge.PolicyFor(pod, draining); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
