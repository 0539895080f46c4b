package surge_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "one"}}
			if test.annotation != "" {
				pod.Annotations["evacuation.coordination.k8s.io/priority_deployment.apps.k8s.io"] = test.annotation
			}
			elsewhere, announced := maintaining("two", always, v1alpha1.StageDrain), maintaining("one", always, v1alpha1.StageCordon)
			suspended := maintaining("one", always, v1alpha1.StageDrain)
			suspended.Name = "suspended"
			deleted := maintaining("one", always, v1alpha1.StageDrain)
			deleted.DeletionTimestamp = ptr.To(metav1.Now())
			isSuspended := func(m *v1alpha1.NodeMaintenance) bool { return m.Name == "suspended" }
			all := []v1alpha1.NodeMaintenance{elsewhere, announced, suspended, deleted}
			for _, policy := range test.policies {
				all = append(all, maintaining("one", policy, v1alpha1.StageDrain))
			}
			if got := surge.PolicyFor(pod, all, isSuspended); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			for i := range all { // E24: the same before the maintenances have written their first status
				all[i].Spec.NodeSelector, all[i].Status.NodeStatuses = v1alpha1.SelectNodes(all[i].Status.NodeStatuses[0].NodeRef.Name), nil
			}
			if got := surge.PolicyFor(pod, all, isSuspended); got != test.want {
				t.Errorf("by spec: got %s, want %s", got, test.want)
			}
		})
	}
}

func maintaining(node string, policy v1alpha1.SurgePolicy, stage v1alpha1.NodeMaintenanceStage) v1alpha1.NodeMaintenance {
	m := v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{
		Stage: stage, Evacuation: v1alpha1.EvacuationPolicy{SharedEvacuationPolicy: v1alpha1.SharedEvacuationPolicy{Surge: policy}},
	}}
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: node}}}
	return m
}
