package report_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/observe"
	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/report"
	"github.com/capnm/cluster-api-node-maintenance/drain/forecast"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// planOf returns the plan of Machine w1 of a Cluster with maxParallelDrains: 1, in which the drain of Machine w0 was requested. nodes are
// the Nodes that were read, and reason is that of the condition of w0, whose nodeRef names the Node named, and which change changes.
func planOf(node *corev1.Node, nodes map[string]*corev1.Node, reason, named string, change func(*clusterv1.Machine)) (report.Drain, []string) {
	w0, w1 := machine("w0", nil), machine("w1", nil)
	w0.DeletionTimestamp, w0.Annotations = ptr.To(metav1.NewTime(now.Add(-time.Minute))), map[string]string{v1alpha1.PreDrainHookAnnotation: ""}
	w0.Status.NodeRef.Name = named
	w0.Status.Conditions = []metav1.Condition{{Type: v1alpha1.MachineNodeMaintenance, Status: metav1.ConditionFalse, Reason: reason}}
	change(&w0)
	policy := v1alpha1.MachineDrainPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "all"}}
	policy.Spec.MaxParallelDrains = ptr.To(intstr.FromInt32(1))
	m := &observe.Machine{
		Machine: &w1, Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}},
		Policies: []v1alpha1.MachineDrainPolicy{policy}, Siblings: []clusterv1.Machine{w0, w1},
	}
	intent := report.IntentOf(m, node, nil, nodes, now)
	return report.MachineDrain(m, node, intent, forecast.Observation{Maintenance: intent.Maintenance, Node: node, Surroundings: surroundings{}, Now: now}, nil),
		report.TurnNodes(m, node, now)
}

func TestTurn(t *testing.T) {
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
	}
	reachable, unreachable := node(corev1.ConditionTrue), node(corev1.ConditionUnknown)
	for name, test := range map[string]struct {
		node   *corev1.Node
		nodes  map[string]*corev1.Node
		waits  bool
		reason string
		isNew  bool // w0 has no nodeRef
		hasID  bool // w0 has a provider ID
		// withdrawn means that the drain of w0 was requested in place, and that its policy no longer requires a drain before an update in place.
		withdrawn bool
	}{
		"does not wait for a Machine without a Node":                    {node: reachable, isNew: true},
		"waits for a Machine whose Node its provider ID may name":       {node: reachable, isNew: true, hasID: true, waits: true},
		"waits for a Machine whose Node is reachable":                   {node: reachable, nodes: map[string]*corev1.Node{"w0": reachable}, waits: true},
		"waits for a Machine whose Node was not read":                   {node: reachable, waits: true},
		"does not wait for a Machine whose Node is unreachable":         {node: reachable, nodes: map[string]*corev1.Node{"w0": unreachable}},
		"does not wait for a Machine whose Node does not exist":         {node: reachable, nodes: map[string]*corev1.Node{"w0": nil}},
		"does not wait with an unreachable Node, whatever others drain": {node: unreachable, nodes: map[string]*corev1.Node{"w0": reachable}},
		"does not wait for a Machine that another manager must drain": {
			node: reachable, nodes: map[string]*corev1.Node{"w0": reachable}, reason: v1alpha1.ReasonHandedOver,
		},
		"does not wait for a drain in place that is not wanted any more": {node: reachable, nodes: map[string]*corev1.Node{"w0": reachable}, withdrawn: true},
		"does not wait for a Machine whose policy cannot be decoded": {
			node: reachable, nodes: map[string]*corev1.Node{"w0": reachable}, reason: v1alpha1.ReasonPolicyNotDecodable,
		},
	} {
		t.Run("K31: the plan "+name, func(t *testing.T) {
			g := NewWithT(t)
			w0 := "w0"
			if test.isNew {
				w0 = ""
			}
			drain, names := planOf(test.node, test.nodes, test.reason, w0, func(w0 *clusterv1.Machine) {
				if test.hasID {
					w0.Spec.ProviderID = "cloud://w0"
				}
				if test.withdrawn {
					w0.DeletionTimestamp, w0.Annotations[clusterv1.UpdateInProgressAnnotation] = nil, ""
					machinedrain.RequestDrain(now)(w0)
				}
			})
			if test.node == reachable && !test.isNew {
				g.Expect(names).To(Equal([]string{"w0"}))
			} else {
				g.Expect(names).To(BeEmpty())
			}
			var reasons []string
			for _, delay := range drain.Delays {
				reasons = append(reasons, delay.Reason)
			}
			g.Expect(reasons).To(Equal(map[bool][]string{true: {v1alpha1.ReasonWaitingForTurn}}[test.waits]))
		})
	}
}

func TestDrainOfClusterAPI(t *testing.T) {
	g, node, w1 := NewWithT(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}, machine("w1", nil)
	m := &observe.Machine{
		Machine: &w1, Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prod"}},
		Facts: machinedrain.Facts{Machine: &w1, ControlPlaneExternal: true},
	}
	policyOf := func() v1alpha1.EvacuationPolicy {
		return report.IntentOf(m, node, nil, nil, now).Maintenance.Spec.Evacuation
	}

	g.Expect(policyOf()).To(And(HaveField("Evacuators", v1alpha1.EvacuatorsBuiltIn), HaveField("StatefulSetPods", v1alpha1.StatefulSetPodsUnordered)), "K35")
	notesOf := func() []string {
		intent := report.IntentOf(m, node, nil, nil, now)
		observed := forecast.Observation{Maintenance: intent.Maintenance, Node: node, Surroundings: surroundings{}, Now: now}
		return report.MachineDrain(m, node, intent, observed, nil).Notes
	}
	g.Expect(notesOf()).To(ConsistOf("No MachineDrainPolicy selects the Machine: Cluster API drains the Node."))
	m.PoliciesUnread = true
	g.Expect(notesOf()).To(ConsistOf(HavePrefix("The MachineDrainPolicies could not be read")), "K71")
	w1.Annotations = map[string]string{v1alpha1.PreDrainHookAnnotation: v1alpha1.HookOwner}
	g.Expect(policyOf()).To(HaveField("Evacuators", v1alpha1.EvacuatorsAny), "M56: this provider drains the Machine, though its policy is gone")
}
