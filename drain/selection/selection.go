// Package selection says what is odd about the Nodes that a maintenance selects. Admission can't list Nodes, so it is told
// afterwards, as a warning.
package selection

import (
	"fmt"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Facts about the Nodes that a maintenance selects.
type Facts struct {
	// Selected counts the selected Nodes, ControlPlane those of them that are of the control plane.
	Selected, ControlPlane int
	// OtherNode and OtherControlPlaneNode: there is one that isn't selected.
	OtherNode, OtherControlPlaneNode bool
}

// Judge returns whether the selection is plausible, with reason and message of the condition that says so.
func Judge(f Facts) (plausible bool, reason, message string) {
	switch {
	case f.Selected == 0:
		return false, v1alpha1.ReasonNoNodesSelected, "The nodeSelector selects no Node"
	case !f.OtherNode:
		return false, v1alpha1.ReasonAllNodesSelected, "The nodeSelector selects every Node: nothing that must go has a place to go to"
	case f.ControlPlane > 0 && !f.OtherControlPlaneNode:
		return false, v1alpha1.ReasonAllControlPlaneNodesSelected, fmt.Sprintf("The nodeSelector selects every control plane Node (%d)", f.ControlPlane)
	default:
		return true, v1alpha1.ReasonNodesSelected, ""
	}
}
