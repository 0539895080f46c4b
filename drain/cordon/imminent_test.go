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
		{name: "one in stage Cordon", change: func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageCordon }, nodes: []string{"one"}},
		{name: "one that only announces", change: func(m *v1alpha1.NodeMaintenance) { m.Spec.Stage = v1alpha1.StageIdle }},
		{name: "one that has cordoned", change: func(m *v1alpha1.NodeMaintenance) {
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeMaintenanceCordoned, Status: metav1.ConditionTrue}}
		}},
		{name: "one that can't", after: time.Minute},
		{name: "E36: one that is being deleted, although it serves a Machine and is recreated", change: func(m *v1alpha1.NodeMaintenance) {
			m.DeletionTimestamp = &metav1.Time{Time: created}
			m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "default/m1"}
		}},
		{name: "one whose API server's clock is a bit ahead", after: -time.Second, nodes: []string{"one"}},
		{name: "one whose API server's clock is wrong", after: -time.Hour},
		{name: "one that selects by label", change: func(m *v1alpha1.NodeMaintenance) {
			m.Spec.NodeSelector.NodeSelectorTerms[0] = v1alpha1.NodeSelectorTerm{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{
				Key: "pool", Operator: corev1.NodeSelectorOpExists,
			}}}
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

func TestCanCordon(t *testing.T) {
	for _, tc := range []struct {
		name    string
		meant   string
		prepare func(*corev1.Node)
		want    bool
	}{
		{name: "a schedulable Node", want: true},
		{name: "a schedulable Node with the recorded UID", meant: "uid", want: true},
		{name: "E36: a Node with another UID than the recorded one", meant: "another"},
		{name: "E36: a Node that is cordoned already", prepare: func(n *corev1.Node) { n.Spec.Unschedulable = true }},
		{name: "E36: a Node that is being deleted", prepare: func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node, m := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid"}}, &v1alpha1.NodeMaintenance{}
			if tc.meant != "" {
				m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: tc.meant}
			}
			if tc.prepare != nil {
				tc.prepare(node)
			}
			if got := cordon.CanCordon(m, node); got != tc.want {
				t.Errorf("CanCordon is %t, want %t", got, tc.want)
			}
		})
	}
}

func TestWaits(t *testing.T) {
	requested := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name  string
		after time.Duration
		want  bool
	}{
		{name: "E36: a new Evacuation waits", after: time.Second, want: true},
		{name: "E36: it waits for half a minute in total, whatever is created meanwhile", after: 30 * time.Second},
		{name: "one whose API server's clock is a bit ahead waits", after: -time.Second, want: true},
		{name: "one whose API server's clock is wrong does not", after: -time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			until, waits := cordon.Waits(requested, requested.Add(tc.after))
			if waits != tc.want || until.Sub(requested) != 30*time.Second {
				t.Errorf("waits is %t until %s, want %t", waits, until, tc.want)
			}
		})
	}
}
