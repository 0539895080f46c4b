package nodemaintenance

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Reasons of the events that this package writes, in workload clusters.
const (
	// eventDrained on a NodeMaintenance: no Pod that must go is left.
	eventDrained = "Drained"
	// eventFastForwarded on a NodeMaintenance: an older one has reached more on a Node than this one's plan has.
	eventFastForwarded = "DrainFastForwarded"
)

// tellFastForwards writes an event for each Node whose message, as stored, now says that the maintenance is fast-forwarded.
func (r *Reconciler) tellFastForwards(s *scope, stored *v1alpha1.NodeMaintenance) {
	if s.decision == nil {
		return
	}
	told := map[string]string{}
	for i := range s.before.Status.NodeStatuses {
		told[s.before.Status.NodeStatuses[i].NodeRef.Name] = s.before.Status.NodeStatuses[i].DrainMessage
	}
	for i := range stored.Status.NodeStatuses {
		status := &stored.Status.NodeStatuses[i]
		by := s.decision.Nodes[status.NodeRef.Name].FastForwardedBy
		if len(by) == 0 || status.DrainMessage == told[status.NodeRef.Name] {
			continue
		}
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeNormal, eventFastForwarded,
			cut(fmt.Sprintf("Node %s is fast-forwarded to what %s has reached there", status.NodeRef.Name, strings.Join(by, ", "))))
	}
}
