package nodeselection_test

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

func selecting(terms ...v1alpha1.NodeSelectorTerm) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{NodeSelector: v1alpha1.NodeSelector{NodeSelectorTerms: terms}}}
}

func requirement(key string, operator corev1.NodeSelectorOperator, values ...string) []v1alpha1.NodeSelectorRequirement {
	return []v1alpha1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}
}

func TestSelects(t *testing.T) {
	named := v1alpha1.NodeSelectorTerm{MatchFields: requirement("metadata.name", corev1.NodeSelectorOpIn, "one")}
	labelled := v1alpha1.NodeSelectorTerm{MatchExpressions: requirement("pool", corev1.NodeSelectorOpIn, "a")}
	recorded := selecting(named)
	recorded.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: "1"}
	for _, tc := range []struct {
		name        string
		maintenance *v1alpha1.NodeMaintenance
		selected    []string // of the Nodes one (pool a), two (pool b) and another one
		byName      bool
	}{
		{name: "R12: selects by name, with any UID", maintenance: selecting(named), selected: []string{"one/1", "one/2"}, byName: true},
		{name: "R12: selects by name and recorded UID", maintenance: recorded, selected: []string{"one/1"}, byName: true},
		{name: "R15: selects by label", maintenance: selecting(labelled), selected: []string{"one/1"}},
		{name: "R15: selects by name or label", maintenance: selecting(named, labelled), selected: []string{"one/1", "one/2"}},
		{
			name:        "R15: selects by name and label",
			maintenance: selecting(v1alpha1.NodeSelectorTerm{MatchFields: named.MatchFields, MatchExpressions: labelled.MatchExpressions}), selected: []string{"one/1"},
		},
		{
			name:        "R15: selects all Nodes except one name",
			maintenance: selecting(v1alpha1.NodeSelectorTerm{MatchFields: requirement("metadata.name", corev1.NodeSelectorOpNotIn, "one")}), selected: []string{"two/3"},
		},
		{name: "R15: an invalid selector selects nothing", maintenance: selecting(v1alpha1.NodeSelectorTerm{MatchExpressions: requirement("pool", "Like", "a")})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var selected []string
			for _, node := range []*corev1.Node{
				{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1", Labels: map[string]string{"pool": "a"}}},
				{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "2"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "two", UID: "3", Labels: map[string]string{"pool": "b"}}},
			} {
				if nodeselection.Selects(tc.maintenance, node) {
					selected = append(selected, node.Name+"/"+string(node.UID))
				}
			}
			if _, byName := nodeselection.Names(tc.maintenance); !slices.Equal(selected, tc.selected) || byName != tc.byName {
				t.Errorf("selects %v, by name %t", selected, byName)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	named := func(name string) v1alpha1.NodeSelectorTerm {
		return v1alpha1.NodeSelectorTerm{MatchFields: requirement("metadata.name", corev1.NodeSelectorOpIn, name)}
	}
	changed := selecting(named("two"))
	changed.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
		{NodeRef: v1alpha1.NodeReference{Name: "one"}}, {NodeRef: v1alpha1.NodeReference{Name: "two"}},
	}
	doubted := selecting(named("one"))
	doubted.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.NodeMaintenanceSelectionPlausible, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAllNodesSelected,
	}}
	for _, tc := range []struct {
		name        string
		maintenance *v1alpha1.NodeMaintenance
		keys        []string
	}{
		{"names", selecting(named("two"), named("one")), []string{"one", "two"}},
		{"a name, and one of before", changed, []string{"one", "two"}},
		{"a label", selecting(v1alpha1.NodeSelectorTerm{MatchExpressions: requirement("pool", corev1.NodeSelectorOpIn, "a")}), []string{nodeselection.AnyNode}},
		{"the name of the only Node", doubted, []string{nodeselection.AnyNode}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if keys := nodeselection.Keys(tc.maintenance); !slices.Equal(keys, tc.keys) {
				t.Errorf("its keys are %v", keys)
			}
		})
	}
}

// FuzzSelects matches arbitrary nodeSelectors, as JSON, with a Node.
func FuzzSelects(f *testing.F) {
	for _, term := range []v1alpha1.NodeSelectorTerm{
		{MatchFields: requirement("metadata.name", corev1.NodeSelectorOpIn, "one")},
		{MatchExpressions: requirement("pool", corev1.NodeSelectorOpGt, "1")},
		{MatchExpressions: requirement("pool", corev1.NodeSelectorOpDoesNotExist), MatchFields: requirement("metadata.name", corev1.NodeSelectorOpNotIn, "a", "b")},
	} {
		text, err := json.Marshal(selecting(term).Spec.NodeSelector)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "one", "1", "pool", "2")
	}
	f.Fuzz(func(t *testing.T, selector, name, uid, label, value string) {
		m := selecting()
		if json.Unmarshal([]byte(selector), &m.Spec.NodeSelector) != nil {
			return
		}
		m.Annotations = map[string]string{v1alpha1.NodeUIDAnnotation: uid}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Labels: map[string]string{label: value}}}
		selected := nodeselection.Selects(m, node)
		if names, byName := nodeselection.Names(m); byName && selected != slices.Contains(names, name) {
			t.Errorf("by names %v it selects %s: %t", names, name, selected)
		}
		if keys := nodeselection.Keys(m); selected && !slices.Contains(keys, name) && !slices.Contains(keys, nodeselection.AnyNode) {
			t.Errorf("it selects %s, and isn't found by it, but by %v", name, keys)
		}
		if node.UID += "x"; uid != "" && nodeselection.Selects(m, node) {
			t.Error("selects a Node with another UID")
		}
	})
}
