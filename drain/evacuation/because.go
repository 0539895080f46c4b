package evacuation

import (
	"fmt"
	"strings"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Bounds of the message of an event.
const (
	maxCauses      = 3
	maxCauseReason = 200
	maxBecause     = 900
)

// Cause returns a text with a maintenance that drains a Node, and its reason.
func Cause(m *v1alpha1.NodeMaintenance, node string) string {
	cause := fmt.Sprintf("NodeMaintenance %s drains Node %s", m.Name, node)
	if m.Spec.Reason == "" {
		return cause
	}
	return cause + " (" + text.Cut(m.Spec.Reason, maxCauseReason) + ")"
}

// Because returns why a Pod of a Node is removed: the maintenances that drain the Node, with their reasons, or the instigators of the
// Evacuation if no maintenance does (E33). Events show it to users of a namespace, who cannot read NodeMaintenances.
func Because(e *v1alpha1.Evacuation, node string, draining []*v1alpha1.NodeMaintenance) string {
	if len(draining) == 0 || !HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer) {
		return text.Cut("requested by "+strings.Join(Instigators(e), ", "), maxBecause)
	}
	return Causes(node, draining)
}

// Causes returns a text with the maintenances that drain a Node, and their reasons. It is empty if none does.
func Causes(node string, draining []*v1alpha1.NodeMaintenance) string {
	causes := make([]string, 0, maxCauses+1)
	for _, m := range draining[:min(len(draining), maxCauses)] {
		causes = append(causes, Cause(m, node))
	}
	if more := len(draining) - maxCauses; more > 0 {
		causes = append(causes, fmt.Sprintf("%d more", more))
	}
	return text.Cut(strings.Join(causes, "; "), maxBecause)
}
