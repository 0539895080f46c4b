package cordon_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
)

func TestImminent(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.NodeMaintenance)
		after  time.Duration
		nodes  []string
	}{
		{name: "one that drains", nodes: []string{"one"}},
		{name: "one whose turn it isn't", change: func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon }, nodes: []string{"one"}},
		{name: "one that only announces", change: func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageIdle }},
		{name: "one that has cordoned", change: func(m *v1alpha1.NodeMaintenance) {
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionTrue}}
		}},
		{name: "one that can't", after: time.Minute},
		{name: "one whose API server's clock is a bit ahead", after: -time.Second, nodes: []string{"one"}},
		{name: "one whose API server's clock is wrong", after: -time.Hour},
		{name: "one that selects by label", change: func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0] = v1alpha1.NodeSelectorTerm{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpExists}}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
			m.Spec.Stage = v1alpha1.StageDrain
			m.Spec.NodeSelector.NodeSelectorTerms = []v1alpha1.NodeSelectorTerm{{MatchFields: []v1alpha1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"one"}},
			}}}
			if tc.change != nil {
				tc.change(m)
			}
			nodes, until := cordon.Imminent(m, created.Add(tc.after))
			if !slices.Equal(nodes, tc.nodes) {
				t.Errorf("about to cordon: %v", nodes)
			}
			if len(nodes) > 0 && !until.After(created) {
				t.Errorf("waited for until %s", until)
			}
		})
	}
}
