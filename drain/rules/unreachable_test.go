package rules_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

func TestUnreachable(t *testing.T) {
	node := func(status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
	}
	t.Run("E22: a Node is unreachable while its readiness is unknown", func(t *testing.T) {
		if !rules.Unreachable(node(corev1.ConditionUnknown)) || rules.Unreachable(node(corev1.ConditionFalse)) || rules.Unreachable(&corev1.Node{}) {
			t.Error("wrong")
		}
	})
}

func TestOverdue(t *testing.T) {
	deletion := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	terminating := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: deletion}}}
	for _, tc := range []struct {
		name        string
		pod         *corev1.Pod
		unreachable bool
		after       time.Duration
		want        bool
	}{
		{"E22: overdue on an unreachable Node", terminating, true, 2 * time.Second, true},
		{"E22: its time isn't up", terminating, true, 0, false},
		{"E22: the kubelet of a reachable Node takes its time", terminating, false, time.Hour, false},
		{"E22: not terminating", &corev1.Pod{}, true, time.Hour, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			overdue, at := rules.Overdue(tc.pod, tc.unreachable, deletion.Add(tc.after))
			if overdue != tc.want {
				t.Errorf("got %t, want %t", overdue, tc.want)
			}
			if tc.unreachable && tc.pod == terminating && !at.Equal(deletion.Add(time.Second)) {
				t.Errorf("overdue at %s", at)
			}
		})
	}
}
