package selection_test

import (
	"testing"

	"github.com/capnm/cluster-api-node-maintenance/drain/selection"
)

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name   string
		facts  selection.Facts
		reason string
	}{
		{name: "R8: no Node", facts: selection.Facts{OtherNode: true}, reason: "NoNodesSelected"},
		{name: "R8: no Node of none", reason: "NoNodesSelected"},
		{name: "R8: every Node", facts: selection.Facts{Selected: 3, ControlPlane: 1}, reason: "AllNodesSelected"},
		{name: "R8: every control plane Node", facts: selection.Facts{Selected: 3, ControlPlane: 3, OtherNode: true}, reason: "AllControlPlaneNodesSelected"},
		{name: "R8: every worker", facts: selection.Facts{Selected: 3, OtherNode: true}, reason: "NodesSelected"},
		{name: "R8: some of the control plane", facts: selection.Facts{Selected: 3, ControlPlane: 2, OtherNode: true, OtherControlPlaneNode: true}, reason: "NodesSelected"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plausible, reason, message := selection.Judge(tc.facts)
			if reason != tc.reason || plausible != (tc.reason == "NodesSelected") || (message == "") != plausible {
				t.Errorf("got %t, %s, %q", plausible, reason, message)
			}
		})
	}
}
