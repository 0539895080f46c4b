package nodeselection_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

func TestCheckPlausible(t *testing.T) {
	for _, tc := range []struct {
		name   string
		facts  nodeselection.Facts
		reason string
	}{
		{name: "R8: reports that no Node is selected", facts: nodeselection.Facts{OtherNode: true}, reason: "NoNodesSelected"},
		{name: "R8: reports that no Node is selected in a cluster without Nodes", reason: "NoNodesSelected"},
		{name: "R8: reports that every Node is selected", facts: nodeselection.Facts{Selected: 3, ControlPlane: 1}, reason: "AllNodesSelected"},
		{
			name: "R8: reports that every control plane Node is selected", facts: nodeselection.Facts{Selected: 3, ControlPlane: 3, OtherNode: true},
			reason: "AllControlPlaneNodesSelected",
		},
		{name: "R81: reports more Nodes than the status can list", facts: nodeselection.Facts{Selected: 5001, OtherNode: true}, reason: "TooManyNodesSelected"},
		{name: "R81: reports that these are all Nodes, too", facts: nodeselection.Facts{Selected: 5001}, reason: "AllNodesSelected"},
		{name: "R81: accepts as many Nodes as the status can list", facts: nodeselection.Facts{Selected: 5000, OtherNode: true}, reason: "NodesSelected"},
		{name: "R8: accepts a selection of every worker", facts: nodeselection.Facts{Selected: 3, OtherNode: true}, reason: "NodesSelected"},
		{
			name:  "R8: accepts a selection of some control plane Nodes",
			facts: nodeselection.Facts{Selected: 3, ControlPlane: 2, OtherNode: true, OtherControlPlaneNode: true}, reason: "NodesSelected",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plausible, reason, message := nodeselection.CheckPlausible(tc.facts)
			if reason != tc.reason || plausible != (tc.reason == "NodesSelected") || (message == "") != plausible {
				t.Errorf("got %t, %s, %q", plausible, reason, message)
			}
			if got := strings.Contains(message, "only the first 5000"); got != (tc.facts.Selected > 5000) {
				t.Errorf("the message counts the Nodes: %t, %q", got, message)
			}
		})
	}
}

func TestIsImplausible(t *testing.T) {
	for _, tc := range []struct {
		name    string
		facts   nodeselection.Facts
		doubted bool
	}{
		{name: "R8: checks again for any new Node when every Node is selected", facts: nodeselection.Facts{Selected: 3}, doubted: true},
		{
			name:  "R8: checks again for any new Node when every control plane Node is selected",
			facts: nodeselection.Facts{Selected: 3, ControlPlane: 3, OtherNode: true}, doubted: true,
		},
		{name: "R8: does not check again for other Nodes when no Node is selected", facts: nodeselection.Facts{OtherNode: true}},
		{name: "R8: does not check a plausible selection again for other Nodes", facts: nodeselection.Facts{Selected: 3, OtherNode: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plausible, reason, _ := nodeselection.CheckPlausible(tc.facts)
			judged := metav1.Condition{Type: v1alpha1.NodeMaintenanceSelectionPlausible, Status: metav1.ConditionFalse, Reason: reason}
			if plausible {
				judged.Status = metav1.ConditionTrue
			}
			m := &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{Conditions: []metav1.Condition{judged}}}
			if doubted := nodeselection.IsImplausible(m); doubted != tc.doubted {
				t.Errorf("doubted: %t", doubted)
			}
		})
	}
}

func TestRepeatedName(t *testing.T) { // R55: a Node that two terms name counts once
	g, m := NewWithT(t), &v1alpha1.NodeMaintenance{}
	for _, node := range []string{"a", "a", "b"} {
		m.Spec.NodeSelector.NodeSelectorTerms = append(m.Spec.NodeSelector.NodeSelectorTerms, v1alpha1.NodeSelectorTerm{
			MatchFields: []v1alpha1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		})
	}
	names, byName := nodeselection.Names(m)
	g.Expect(byName).To(BeTrue())
	turns := nodeselection.TurnsOf([]nodeselection.Drain{{Name: "m", Limit: 2, Nodes: names}}, nil) // selectedNodes gets each name once
	g.Expect(turns.Waiting).To(BeEmpty(), "maxParallelNodes: 2 permits both Nodes")
	g.Expect(names).To(Equal([]string{"a", "b"}))
}
