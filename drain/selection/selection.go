// Package selection says which Nodes a maintenance selects, and what is odd about them. Admission can't list Nodes, so that is
// told afterwards, as a warning.
package selection

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Doubted says whether a maintenance is said to select all Nodes, or all of the control plane: any Node may show that it doesn't.
func Doubted(m *v1alpha1.NodeMaintenance) bool {
	judged := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
	return judged != nil && judged.Status == metav1.ConditionFalse && judged.Reason != v1alpha1.ReasonNoNodesSelected
}
