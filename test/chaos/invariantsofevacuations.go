package chaos

import (
	"fmt"
	"slices"
	"time"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/evacuation"
)

// withdrawn checks each NodeMaintenance of a user that the manager lets go: NodeMaintenances are no instigator of the Evacuations on its
// Nodes any more, unless another one drains the Node. A manager that was started after an Evacuation was created may not know it.
func withdrawn(h *History) []string {
	v, evacuations := h.verdicts(), timelines[*v1alpha1.Evacuation](&h.Workload, evacuationKeys)
	var found []string
	for name, versions := range v.maintenances {
		for i, version := range versions {
			if version.exists || i == 0 || !versions[i-1].exists || versions[i-1].object.Annotations[v1alpha1.OwnerMachineAnnotation] != "" {
				continue
			}
			from, until := h.Workload.Clock.period(version.revision)
			if !h.removedFinalizer(name, from, until) {
				continue
			}
			for key, timeline := range evacuations {
				node, isInstigator := instigatedOn(timeline, version.revision)
				if !isInstigator || !selects(versions[i-1].object, node) {
					continue
				}
				created := h.Workload.Clock.timeOf(timeline[0].revision)
				isExcused := h.managerStarted(created.Add(-handover), until) || h.hadFault(created, until, leaderReplaced) ||
					v.drainsAlso(name, node, h.Workload.Clock.Before(from.Add(-lag)), version.revision)
				if !isExcused {
					found = append(found, fmt.Sprintf("NodeMaintenance %s was gone at %s, and not withdrawn from Evacuation %s", name, until.Format("15:04:05.000"), key))
				}
			}
		}
	}
	return found
}

// instigatedOn returns the Node of an Evacuation, and whether NodeMaintenances were an instigator of it at a revision.
func instigatedOn(versions timeline[*v1alpha1.Evacuation], revision int64) (node string, isInstigator bool) {
	e, exists := versions.at(revision)
	if !exists || e.DeletionTimestamp != nil {
		return "", false
	}
	return e.Annotations[v1alpha1.EvacuationNodeAnnotation], evacuation.HasInstigator(e, v1alpha1.NodeMaintenanceInstigatorFinalizer)
}

// removedFinalizer returns whether our manager changed a NodeMaintenance in a period.
func (h *History) removedFinalizer(maintenance string, from, until time.Time) bool {
	for _, e := range h.Workload.byManager().Verb("patch").Resource("nodemaintenances").Named("", maintenance).Succeeded() {
		if !e.Requested.After(until) && !e.Answered.Before(from) {
			return true
		}
	}
	return false
}

// drainsAlso returns whether another NodeMaintenance in stage Drain selected the Node in a period.
func (v *verdicts) drainsAlso(maintenance, node string, from, until int64) bool {
	for name, versions := range v.maintenances {
		if name != maintenance && slices.ContainsFunc(versions.during(from, until), func(s stored[*v1alpha1.NodeMaintenance]) bool {
			return s.exists && selects(s.object, node) && s.object.Spec.Stage == v1alpha1.StageDrain
		}) {
			return true
		}
	}
	return false
}
