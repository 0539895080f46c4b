package plan_test

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
)

func TestComponent(t *testing.T) {
	all := []plan.Maintenance{
		{Name: "far", Nodes: []string{"three", "four"}},
		{Name: "near", Nodes: []string{"two", "three"}},
		{Name: "other", Nodes: []string{"five"}},
		{Name: "a", Nodes: []string{"one", "two"}},
		{Name: "empty"},
	}
	for of, expected := range map[string]string{
		"a": "far near a ", "far": "far near a ", "other": "other ", "empty": "empty ", "unknown": "",
	} {
		var got string
		for _, m := range plan.Component(of, all) {
			got += m.Name + " "
		}
		if got != expected {
			t.Errorf("component of %s: %q, expected %q", of, got, expected)
		}
	}
}
