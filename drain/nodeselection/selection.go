// Package nodeselection decides which Nodes a maintenance selects, and whether that selection is plausible. Admission cannot list Nodes, so
// the controller reports an implausible selection after the fact.
package nodeselection

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

// MaxNodes is the maximum number of Nodes with an entry in nodeStatuses.
const MaxNodes = 5000

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
	plausible, reason, message = checkKinds(f)
	tooMany := TooManyMessage(f.Selected)
	switch {
	case tooMany == "":
		return plausible, reason, message
	case plausible:
		return false, v1alpha1.ReasonTooManyNodesSelected, tooMany
	default:
		return false, reason, message + ". " + tooMany
	}
}

// TooManyMessage returns what does not work if that many Nodes are selected. It is empty if nodeStatuses can have all of them.
func TooManyMessage(selected int) string {
	if selected <= MaxNodes {
		return ""
	}
	return fmt.Sprintf("The nodeSelector selects %d Nodes, of which only the first %d by name have an entry in nodeStatuses: on the others, Pods of "+
		"DaemonSets and static Pods are not removed, and no surge and no drain timeout applies. Use several NodeMaintenances", selected, MaxNodes)
}

func checkKinds(f Facts) (plausible bool, reason, message string) {
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

// IsImplausible reports whether condition SelectionPlausible says that the maintenance selects all Nodes, or all control plane Nodes. Any
// new Node may change that.
func IsImplausible(m *v1alpha1.NodeMaintenance) bool {
	judged := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
	return judged != nil && judged.Status == metav1.ConditionFalse && judged.Reason != v1alpha1.ReasonNoNodesSelected
}

// Names returns the names of the Nodes that a maintenance selects, without those that no Node can have. It returns byName = false if its
// nodeSelector does not select by name alone.
func Names(m *v1alpha1.NodeMaintenance) (names []string, byName bool) {
	seen := sets.New[string]()
	for _, term := range m.Spec.NodeSelector.NodeSelectorTerms {
		if len(term.MatchExpressions) > 0 || len(term.MatchFields) != 1 || term.MatchFields[0].Operator != corev1.NodeSelectorOpIn ||
			len(term.MatchFields[0].Values) != 1 {
			return nil, false
		}
		if name := term.MatchFields[0].Values[0]; name != "" && lookup.CanExist(name) && !seen.Has(name) { // terms may repeat a name
			seen.Insert(name)
			names = append(names, name)
		}
	}
	return names, true
}

// CouldSelect reports whether a Node has the UID that the maintenance records. It is true if the maintenance records none.
func CouldSelect(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool {
	uid := m.Annotations[v1alpha1.NodeUIDAnnotation]
	return uid == "" || uid == string(node.UID)
}

// Selects reports whether a maintenance selects a Node.
func Selects(m *v1alpha1.NodeMaintenance, node *corev1.Node) bool { return Of(m)(node) }

// Of returns a function that reports whether a maintenance selects a Node. An invalid nodeSelector selects none.
func Of(m *v1alpha1.NodeMaintenance) func(*corev1.Node) bool {
	if names, byName := Names(m); byName {
		return func(node *corev1.Node) bool { return slices.Contains(names, node.Name) && CouldSelect(m, node) }
	}
	parsed, err := nodeaffinity.NewNodeSelector(m.Spec.NodeSelector.Core())
	return func(node *corev1.Node) bool { return err == nil && CouldSelect(m, node) && parsed.Match(node) }
}

// AnyNode is the index key of maintenances that any Node may concern. It is not a valid name of a Node.
const AnyNode = "*"

// Keys returns the index keys of a maintenance: the names of all Nodes that it selects or that its status lists. It returns AnyNode if the
// maintenance selects by label, or if any other Node may change its condition SelectionPlausible.
func Keys(m *v1alpha1.NodeMaintenance) []string {
	if _, byName := Names(m); !byName || IsImplausible(m) {
		return []string{AnyNode}
	}
	return KnownNodes(m)
}

// KnownNodes returns the names of the Nodes that a maintenance selects by name or that its status lists. A maintenance that selects by
// label may select others.
func KnownNodes(m *v1alpha1.NodeMaintenance) []string {
	names, _ := Names(m)
	known := sets.New(names...)
	for i := range m.Status.NodeStatuses {
		known.Insert(m.Status.NodeStatuses[i].NodeRef.Name)
	}
	return sets.List(known)
}

// HasNodeStatus reports whether the status of a maintenance lists a Node: the maintenance has selected the Node and has not released it
// yet.
func HasNodeStatus(m *v1alpha1.NodeMaintenance, node string) bool {
	return slices.ContainsFunc(m.Status.NodeStatuses, func(status v1alpha1.NodeMaintenanceNodeStatus) bool { return status.NodeRef.Name == node })
}

// NodeStatuses returns the entries of the Nodes that the status of a maintenance lists, by the name of the Node.
func NodeStatuses(m *v1alpha1.NodeMaintenance) map[string]*v1alpha1.NodeMaintenanceNodeStatus {
	statuses := make(map[string]*v1alpha1.NodeMaintenanceNodeStatus, len(m.Status.NodeStatuses))
	for i := range m.Status.NodeStatuses {
		statuses[m.Status.NodeStatuses[i].NodeRef.Name] = &m.Status.NodeStatuses[i]
	}
	return statuses
}
