package planinput_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// surroundings is a workload cluster without labels of Namespaces and without DaemonSets.
type surroundings struct{}

func (surroundings) NamespaceLabels(string) (map[string]string, bool) { return nil, true }

func (surroundings) DaemonSetExists(string, string, types.UID) (exists, known bool) {
	return false, true
}

// pool is one NodeMaintenance over all Nodes of a pool, and one of each Node.
func pool(nodes, podsPerNode int) (drains []planinput.Drain, pods []*corev1.Pod) {
	all := drain("pool")
	for i := range nodes {
		name := fmt.Sprint("node-", i)
		single := drain("machine-"+name, name)
		all.Nodes = append(all.Nodes, single.Nodes...)
		drains = append(drains, single)
		for j := range podsPerNode {
			pods = append(pods, podOn(name, "default", fmt.Sprint("pod-", i, "-", j)))
		}
	}
	return append(drains, all), pods
}

func drain(name string, nodes ...string) planinput.Drain {
	d := planinput.Drain{Maintenance: &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, DrainRules: rules.Compile(rules.Input{}).Rules},
	}}
	for _, node := range nodes {
		d.Nodes = append(d.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	return d
}

func podOn(node, namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

// unread is a workload cluster whose DaemonSets have not been listed yet.
type unread struct{ surroundings }

func (unread) DaemonSetExists(string, string, types.UID) (exists, known bool) { return false, false }

// existing is a workload cluster in which each DaemonSet exists.
type existing struct{ surroundings }

func (existing) DaemonSetExists(string, string, types.UID) (exists, known bool) { return true, true }

func TestPodsOfDaemonSets(t *testing.T) {
	for name, tc := range map[string]struct {
		surroundings planinput.Surroundings
		drained      bool
	}{
		"M6: a drain waits until it is known whether the DaemonSet of a Pod exists, also if the Pod tolerates every taint": {unread{}, false},
		"M8: a drain waits for a Pod that tolerates every taint and whose DaemonSet no longer exists":                      {surroundings{}, false},
		"R40: a drain does not wait for a Pod that its DaemonSet would recreate":                                           {existing{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pod := podOn("one", metav1.NamespaceSystem, "proxy")
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "proxy", UID: "set", Controller: ptr.To(true)}}
			c := planinput.ComponentOf("m", []planinput.Drain{drain("m", "one")}, now)
			planned := []plan.Pod{c.Pod(tc.surroundings, pod, nil, false, now).Planned}
			g.Expect(c.Decide(planned, c.Turns(planned)).Maintenances["m"].Drained).To(Equal(tc.drained))
		})
	}
}

func TestVerdicts(t *testing.T) {
	t.Run("E60: evaluates the drain rules of the NodeMaintenances that select the Node of a Pod, and no others", func(t *testing.T) {
		g := NewWithT(t)
		drains, pods := pool(200, 3)
		c := planinput.ComponentOf("pool", drains, now)
		evaluated := 0
		for _, object := range pods {
			pod := c.Pod(surroundings{}, object, nil, false, now)
			evaluated += len(pod.Verdicts)
			g.Expect(pod.Planned.Verdicts).To(HaveLen(2), object.Name)
			g.Expect(pod.Planned.Verdicts).To(And(HaveKey("pool"), HaveKey("machine-"+object.Spec.NodeName)))
		}
		g.Expect(evaluated).To(Equal(2 * len(pods)))
	})

	t.Run("S11: a rule of a NodeMaintenance of another Node does not make static Pods of a control plane evacuable", func(t *testing.T) {
		controlPlane := v1alpha1.DrainRule{Name: "control-plane", Behavior: v1alpha1.DrainBehaviorDrain, Pods: []v1alpha1.DrainRulePodSelector{{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "control-plane"}},
		}}}
		names, others := drain("names-it", "cp-2"), drain("others", "cp-1", "cp-2")
		names.Maintenance.Spec.DrainRules, others.Maintenance.Spec.DrainRules = []v1alpha1.DrainRule{controlPlane}, nil
		c := planinput.ComponentOf("others", []planinput.Drain{names, others}, now)
		for node, evacuable := range map[string]bool{"cp-1": false, "cp-2": true} {
			t.Run(node, func(t *testing.T) {
				g := NewWithT(t)
				apiServer := podOn(node, metav1.NamespaceSystem, "kube-apiserver-"+node)
				apiServer.Labels = map[string]string{"tier": "control-plane", "component": "kube-apiserver"}
				apiServer.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
				apiServer.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node", Controller: ptr.To(true)}}
				pod := c.Pod(surroundings{}, apiServer, nil, true, now)
				g.Expect(pod.Type).To(Equal(v1alpha1.PodTypeStatic))
				g.Expect(pod.Planned.HasEvacuator).To(Equal(evacuable))
			})
		}
	})
}

func TestEvacuators(t *testing.T) {
	for name, tc := range map[string]struct {
		policy v1alpha1.StatefulSetPodsPolicy
		label  string
		want   int
	}{
		"E28: no NodeMaintenance of the Node requires an order":         {v1alpha1.StatefulSetPodsUnordered, "", 0},
		"E28: another NodeMaintenance of the Node requires an order":    {v1alpha1.StatefulSetPodsOrdered, "", 1},
		"E28: the NodeMaintenance that requires an order skips the Pod": {v1alpha1.StatefulSetPodsOrdered, "skip", 0},
	} {
		t.Run(name, func(t *testing.T) {
			creates, other := drain("creates", "one"), drain("other", "one")
			creates.Maintenance.Spec.DrainRules, creates.Maintenance.Spec.DrainLabelPolicy = nil, v1alpha1.DrainLabelPolicyIgnore
			other.Maintenance.Spec.Evacuation.StatefulSetPods = tc.policy
			object := podOn("one", "default", "db-0")
			object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: ptr.To(true)}}
			if tc.label != "" {
				object.Labels["cluster.x-k8s.io/drain"] = tc.label
			}
			pod := planinput.ComponentOf("creates", []planinput.Drain{creates, other}, now).Pod(surroundings{}, object, nil, false, now)
			evacuators, _ := pod.Evacuators(object, creates.Maintenance.Spec.Evacuation.SharedEvacuationPolicy)
			NewWithT(t).Expect(evacuators).To(HaveLen(tc.want))
		})
	}
}

// BenchmarkPool500Nodes15000Pods is the input of one decision about a NodeMaintenance that selects 500 Nodes, each of which is also
// selected by the NodeMaintenance of its deleted Machine.
func BenchmarkPool500Nodes15000Pods(b *testing.B) {
	drains, pods := pool(500, 30)
	b.ReportAllocs()
	for b.Loop() {
		c := planinput.ComponentOf("pool", drains, now)
		planned := make([]plan.Pod, 0, len(pods))
		for _, pod := range pods {
			planned = append(planned, c.Pod(surroundings{}, pod, nil, false, now).Planned)
		}
		c.Decide(planned, c.Turns(planned))
	}
}
