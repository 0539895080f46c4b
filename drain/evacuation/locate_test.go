package evacuation_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

func TestNeedsPod(t *testing.T) {
	one := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid"}}
	maintenance := func(stage v1alpha1.NodeMaintenanceStage, node string, changes ...func(*v1alpha1.NodeMaintenance)) []v1alpha1.NodeMaintenance {
		m := v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage, NodeSelector: v1alpha1.SelectNodes(node)}}
		for _, change := range changes {
			change(&m)
		}
		return []v1alpha1.NodeMaintenance{m}
	}
	for _, tc := range []struct {
		name     string
		recorded evacuation.RecordedNode
		want     bool
	}{
		{name: "needs no Pod of a Node that is watched already", recorded: evacuation.RecordedNode{Name: "one", Watched: true}},
		{
			name:     "needs no Pod of a Node that a NodeMaintenance drains",
			recorded: evacuation.RecordedNode{Name: "one", Node: one, Maintenances: maintenance(v1alpha1.StageDrain, "one")},
		},
		{
			name:     "needs the Pod of a Node that is only cordoned",
			recorded: evacuation.RecordedNode{Name: "one", Node: one, Maintenances: maintenance(v1alpha1.StageCordon, "one")}, want: true,
		},
		{
			name: "needs the Pod of a Node whose NodeMaintenance selects another Node of the same name by UID",
			recorded: evacuation.RecordedNode{Name: "one", Node: one, Maintenances: maintenance(v1alpha1.StageDrain, "one", func(m *v1alpha1.NodeMaintenance) {
				m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: "another"}
			})}, want: true,
		},
		{
			name: "needs the Pod of a Node whose NodeMaintenance is being deleted",
			recorded: evacuation.RecordedNode{Name: "one", Node: one, Maintenances: maintenance(v1alpha1.StageDrain, "one", func(m *v1alpha1.NodeMaintenance) {
				m.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			})}, want: true,
		},
		{name: "for a Node that does not exist", recorded: evacuation.RecordedNode{Name: "one", Maintenances: maintenance(v1alpha1.StageDrain, "one")}, want: true},
		{name: "for a Node without NodeMaintenances", recorded: evacuation.RecordedNode{Name: "one", Node: one}, want: true},
		{name: "for a Pod that was not scheduled when the annotation was written", recorded: evacuation.RecordedNode{Watched: true}, want: true},
	} {
		t.Run("E37: "+tc.name, func(t *testing.T) {
			if got := tc.recorded.NeedsPod(); got != tc.want {
				t.Errorf("NeedsPod is %t, want %t", got, tc.want)
			}
		})
	}
}
