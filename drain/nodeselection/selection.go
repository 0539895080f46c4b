// Package nodeselection decides which Nodes a maintenance selects, and whether that selection is plausible. Admission cannot list Nodes, so the
// controller reports an implausible selection after the fact.
package nodeselection

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// NoNodeMessage is the message of conditions with the reason NoNodesSelected.
const NoNodeMessage = "The nodeSelector selects no Node"

// Facts describe the Nodes that a maintenance selects.
type Facts struct {
	// Selected is the number of selected Nodes, ControlPlane the number of control plane Nodes among them.
	Selected, ControlPlane int
	// OtherNode means that there is a Node that is not selected, OtherControlPlaneNode that there is such a control plane Node.
	OtherNode, OtherControlPlaneNode bool
}

// CheckPlausible returns whether the selection is plausible, with the reason and message of condition SelectionPlausible.
func CheckPlausible(f Facts) (plausible bool, reason, message string) {
	switch {
	case f.Selected == 0:
		return false, v1alpha1.ReasonNoNodesSelected, NoNodeMessage
	case !f.OtherNode:
		return false, v1alpha1.ReasonAllNodesSelected, "The nodeSelector selects every Node: evicted Pods cannot be scheduled to another one"
	case f.ControlPlane > 0 && !f.OtherControlPlaneNode:
		return false, v1alpha1.ReasonAllControlPlaneNodesSelected, fmt.Sprintf("The nodeSelector selects every control plane Node (%d)", f.ControlPlane)
	default:
		return true, v1alpha1.ReasonNodesSelected, ""
	}
}

// IsImplausible reports whether condition SelectionPlausible says that the maintenance selects all Nodes, or all control plane Nodes. Any new
// Node may change that.
func IsImplausible(m *v1alpha1.NodeMaintenance) bool {
	judged := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
	return judged != nil && judged.Status == metav1.ConditionFalse && judged.Reason != v1alpha1.ReasonNoNodesSelected
}
