package cordon_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
)

func TestExcludes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		stage v1alpha1.NodeMaintenanceStage
		asks  bool
		want  bool
	}{
		{"M32: excludes a Node in stage Drain", v1alpha1.StageDrain, true, true},
		{"M32: does not exclude a Node unless the NodeMaintenance requests it", v1alpha1.StageDrain, false, false},
		{"M32: does not exclude a Node in stage Cordon", v1alpha1.StageCordon, true, false},
		{"M32: does not exclude a Node in stage Complete", v1alpha1.StageComplete, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: tc.stage, ExcludeFromLoadBalancers: tc.asks}}
			if got := cordon.Excludes(m); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestExcludeAndInclude(t *testing.T) {
	labelled := func(n *corev1.Node) bool {
		_, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]
		return labelled
	}
	t.Run("M32: removes the label that it has set", func(t *testing.T) {
		n := node(false)
		if !cordon.Exclude(n) || !labelled(n) || cordon.Exclude(n) {
			t.Fatalf("not labelled, or twice: %v", n)
		}
		if !cordon.Include(n) || labelled(n) || len(n.Annotations) > 0 || cordon.Include(n) {
			t.Fatalf("not removed once: %v", n)
		}
	})
	t.Run("M32: keeps a label that another actor has set", func(t *testing.T) {
		n := node(false)
		n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "true"}
		if cordon.Exclude(n) || cordon.Include(n) || !labelled(n) {
			t.Fatalf("touched: %v", n)
		}
	})
}
