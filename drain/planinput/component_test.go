package planinput_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/planinput"
)

func TestBlocking(t *testing.T) { // R55: says what a NodeMaintenance waits for whose Nodes all wait
	g := NewWithT(t)
	drain := func(name string, nodes ...string) planinput.Drain {
		d := planinput.Drain{Maintenance: &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.StageDrain, MaxParallelNodes: ptr.To(intstr.FromInt32(1)),
		}}}
		for _, node := range nodes {
			d.Nodes = append(d.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		}
		return d
	}
	c := planinput.ComponentOf("m", []planinput.Drain{drain("m", "b"), drain("other", "a", "b")}, now)
	var pods []plan.Pod
	drains := plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
	for _, node := range []string{"a", "b"} {
		pods = append(pods, plan.Pod{
			UID: "pod-" + types.UID(node), Name: "pod", Node: node, Type: v1alpha1.PodTypeDefault, Verdicts: map[string]plan.Verdict{"m": drains, "other": drains},
		})
	}
	turns := c.Turns(pods)
	g.Expect(turns.Waiting).To(HaveKey("b"))
	decision := c.Decide(pods, turns).Maintenances["m"]
	g.Expect(decision.Drained).To(BeFalse())
	g.Expect(decision.Blocking).To(Equal(turns.Message("m")+"."), "Node b is selected")
}

func TestServesMachine(t *testing.T) { // R47, M130: only the NodeMaintenance of a Machine limits the rows of Pod types that it skips
	g := NewWithT(t)
	users := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "users"}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain}}
	machines := users.DeepCopy()
	machines.Name, machines.Annotations = "machines", map[string]string{v1alpha1.OwnerMachineAnnotation: "fleet/m"}
	one := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}
	deleted := machines.DeepCopy()
	deleted.Name, deleted.Annotations[v1alpha1.RequestedForAnnotation] = "of-deletion", v1alpha1.RequestedForDeletion
	users.Annotations = map[string]string{v1alpha1.RequestedForAnnotation: v1alpha1.RequestedForDeletion} // means nothing
	c := planinput.ComponentOf("users", []planinput.Drain{
		{Maintenance: users, Nodes: one}, {Maintenance: machines, Nodes: one}, {Maintenance: deleted, Nodes: one},
	}, now)
	g.Expect(c.Maintenances).To(HaveExactElements(HaveField("ServesMachine", false), HaveField("ServesMachine", true), HaveField("ServesMachine", true)))
	g.Expect(c.Maintenances).To(HaveExactElements(HaveField("ServesDeletion", false), HaveField("ServesDeletion", false), HaveField("ServesDeletion", true)))
}

func TestDaemonSetsKept(t *testing.T) {
	maintenance := func(name string, stage v1alpha1.NodeMaintenanceStage, purpose string, rules ...v1alpha1.DrainRule) v1alpha1.NodeMaintenance {
		m := v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Spec.Stage, m.Spec.NodeSelector, m.Spec.DrainRules = stage, v1alpha1.SelectNodes("one"), rules
		if purpose != "" {
			m.Annotations = map[string]string{v1alpha1.OwnerMachineAnnotation: "fleet/m", v1alpha1.RequestedForAnnotation: purpose}
		}
		return m
	}
	skips := v1alpha1.DrainRule{
		Name: "daemonset-pods", Behavior: v1alpha1.DrainBehaviorSkip, Pods: []v1alpha1.DrainRulePodSelector{{PodType: v1alpha1.PodTypeDaemonSet}},
	}
	users := maintenance("users", v1alpha1.StageDrain, "")
	const cordon, deletion = v1alpha1.StageCordon, v1alpha1.RequestedForDeletion
	for name, tc := range map[string]struct {
		other v1alpha1.NodeMaintenance
		kept  bool
	}{
		"M130: the Pods of DaemonSets also stay while a deleted Machine waits for a turn": {maintenance("m", cordon, deletion, skips), true},
		"M130: but not if its policy drains them":                                         {maintenance("m", cordon, deletion), false},
		"M130: nor for a Machine that is not being deleted":                               {maintenance("m", cordon, v1alpha1.RequestedForStage, skips), false},
		"M130: nor when the maintenance of the Machine has completed":                     {maintenance("m", v1alpha1.StageComplete, deletion, skips), false},
		"M130: nor for a user's maintenance, which only cordons the Node and skips them":  {maintenance("m", cordon, "", skips), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := planinput.ComponentOf("users", []planinput.Drain{{Maintenance: &users, Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}}}, now)
			c.DaemonSetsKept = planinput.DaemonSetsKept([]v1alpha1.NodeMaintenance{tc.other})
			csi := plan.Pod{UID: "csi", Name: "csi", Node: "one", Type: v1alpha1.PodTypeDaemonSet, Verdicts: map[string]plan.Verdict{
				"users": {Behavior: v1alpha1.DrainBehaviorDrain},
			}}
			decision := c.Decide([]plan.Pod{csi}, nodeselection.Turns{}).Maintenances["users"]
			if targets := plan.OfType(v1alpha1.PodTypeDaemonSet, decision.Nodes["one"].Targets); tc.kept {
				g.Expect(targets).To(BeEmpty())
			} else {
				g.Expect(targets).NotTo(BeEmpty())
			}
			g.Expect(decision.Drained).To(BeFalse())
		})
	}
}

func TestTurnsOfSuspended(t *testing.T) {
	drain := func(name string, limit *intstr.IntOrString, nodes ...string) planinput.Drain {
		d := planinput.Drain{Maintenance: &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.StageDrain, MaxParallelNodes: limit},
		}}
		for _, node := range nodes {
			d.Nodes = append(d.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		}
		return d
	}
	drains := plan.Verdict{Behavior: v1alpha1.DrainBehaviorDrain}
	on := func(node string, verdicts map[string]plan.Verdict) plan.Pod {
		return plan.Pod{UID: "pod-" + types.UID(node), Name: "pod", Node: node, Type: v1alpha1.PodTypeDefault, Verdicts: verdicts}
	}
	one := ptr.To(intstr.FromInt32(1))
	for _, tc := range []struct {
		name      string
		suspended bool
		waiting   []string
	}{
		{"R56: a NodeMaintenance without a limit starts its Node at once", false, []string{"a"}},
		{"E58: a suspended one does not", true, []string{"b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			other := drain("other", nil, "b")
			other.Suspended = tc.suspended
			c := planinput.ComponentOf("m", []planinput.Drain{drain("m", one, "a", "b"), other}, now)
			turns := c.Turns([]plan.Pod{on("a", map[string]plan.Verdict{"m": drains}), on("b", map[string]plan.Verdict{"m": drains, "other": drains})})
			g.Expect(sets.List(turns.Waiting)).To(Equal(tc.waiting))
		})
	}
	t.Run("E58: a Node that only a suspended NodeMaintenance has started waits in others while their limit is reached, and keeps its Evacuations",
		func(t *testing.T) {
			g := NewWithT(t)
			paused := drain("paused", nil, "b")
			paused.Suspended = true
			c := planinput.ComponentOf("m", []planinput.Drain{drain("m", one, "a", "b"), paused}, now)
			skips := plan.Verdict{Behavior: v1alpha1.DrainBehaviorSkip}
			started := on("b", map[string]plan.Verdict{"m": skips, "paused": drains})
			started.Evacuating = true
			pending := on("b", map[string]plan.Verdict{"m": drains, "paused": skips})
			pending.UID = "pending"
			pods := []plan.Pod{on("a", map[string]plan.Verdict{"m": drains}), started, pending}
			turns := c.Turns(pods)
			g.Expect(sets.List(turns.Waiting)).To(Equal([]string{"b"}))
			g.Expect(c.Decide(pods, turns).Kept).To(HaveKey(started.UID))
		})
}
