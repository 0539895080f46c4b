package staticpod_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/staticpod"
)

func pod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
}

func TestHasEvacuator(t *testing.T) {
	etcd := pod("kube-system", "etcd-n1", nil)
	balancer := pod("kube-system", "kube-vip-n1", nil)
	byLabel := &v1alpha1.DrainRule{
		Name: "etcd", Pods: []v1alpha1.DrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"component": "etcd"}}}},
	}
	byType := &v1alpha1.DrainRule{Name: "static", Pods: []v1alpha1.DrainRulePodSelector{{PodType: v1alpha1.PodTypeStatic}}}
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		podType v1alpha1.PodType
		by      *v1alpha1.DrainRule
		want    bool
	}{
		"S8: a static Pod":                     {pod("default", "web-n1", nil), v1alpha1.PodTypeStatic, nil, true},
		"S8: no other Pod":                     {pod("default", "web", nil), v1alpha1.PodTypeDefault, nil, false},
		"S11: a control plane's":               {etcd, v1alpha1.PodTypeStatic, nil, false},
		"S11: a load balancer of API servers":  {balancer, v1alpha1.PodTypeStatic, nil, false},
		"S11: a rule names it":                 {etcd, v1alpha1.PodTypeStatic, byLabel, true},
		"S11: a rule is about all static Pods": {etcd, v1alpha1.PodTypeStatic, byType, false},
		"S11: a rule is about everything":      {etcd, v1alpha1.PodTypeStatic, &v1alpha1.DrainRule{Name: "all"}, false},
		"S11: a Pod of that name elsewhere":    {pod("default", "etcd-n1", nil), v1alpha1.PodTypeStatic, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := staticpod.HasEvacuator(test.pod, test.podType, test.by); got != test.want {
				t.Error(got)
			}
		})
	}
}

func TestServed(t *testing.T) { // S8
	agent := pod("capnm-node-agent", "capnm-node-agent-x", map[string]string{"app.kubernetes.io/name": "capnm-node-agent"})
	if staticpod.Served([]*corev1.Pod{agent}) {
		t.Error("it doesn't run")
	}
	agent.Status.Phase = corev1.PodRunning
	if !staticpod.Served([]*corev1.Pod{pod("a", "b", nil), agent}) {
		t.Error("it runs")
	}
	impostor := agent.DeepCopy()
	impostor.Namespace = "tenant"
	if staticpod.Served([]*corev1.Pod{impostor}) {
		t.Error("a tenant can set that label")
	}
}

func TestTargets(t *testing.T) {
	m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Spec.Stage = v1alpha1.StageDrain
	m.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
		NodeRef:      v1alpha1.NodeReference{Name: "n1"},
		DrainTargets: []v1alpha1.DrainTarget{{PodType: v1alpha1.PodTypeDefault, PodPriority: 1}, {PodType: v1alpha1.PodTypeStatic, PodPriority: 7000}},
	}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	t.Run("S9: returns the published targets of static Pods only", func(t *testing.T) {
		got, _, err := staticpod.Targets(node, []v1alpha1.NodeMaintenance{m})
		if err != nil || !strings.Contains(got, "7000") || strings.Contains(got, "Default") {
			t.Errorf("%s, %v", got, err)
		}
	})
	t.Run("S9: names the NodeMaintenances that have published them, and their reasons", func(t *testing.T) {
		other := *m.DeepCopy()
		other.Name, other.Spec.Reason, other.Status.NodeStatuses[0].DrainTargets = "another", "new disk", other.Status.NodeStatuses[0].DrainTargets[:1]
		m := *m.DeepCopy()
		m.Spec.Reason = "new kernel"
		_, cause, err := staticpod.Targets(node, []v1alpha1.NodeMaintenance{m, other})
		if cause != "NodeMaintenance m drains Node n1 (new kernel)" || err != nil {
			t.Errorf("%s, %v", cause, err)
		}
	})
	t.Run("S9: the result does not depend on the order of the NodeMaintenances", func(t *testing.T) {
		other := *m.DeepCopy()
		other.Name = "n"
		other.Status.NodeStatuses[0].DrainTargets[1].PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
		first, firstCause, err := staticpod.Targets(node, []v1alpha1.NodeMaintenance{m, other})
		second, secondCause, err2 := staticpod.Targets(node, []v1alpha1.NodeMaintenance{other, m})
		if first != second || firstCause != secondCause || !strings.Contains(first, "db") || err != nil || err2 != nil {
			t.Errorf("%s, %v; %s, %v", first, err, second, err2)
		}
	})
	t.Run("S10: returns no targets when the drain has ended", func(t *testing.T) {
		over := *m.DeepCopy()
		over.Spec.Stage = v1alpha1.StageComplete
		if got, cause, err := staticpod.Targets(node, []v1alpha1.NodeMaintenance{over}); got+cause != "" || err != nil {
			t.Errorf("%s, %v", got, err)
		}
		if got := staticpod.Affected(&m, &over); len(got) != 1 || got[0] != "n1" {
			t.Errorf("affected: %v", got)
		}
	})
}
