// Package nodecondition decides which conditions a Node has while it is under maintenance, so that a user or controller that reads only
// Nodes can see the maintenance. The conditions are those of KEP-5683, as Kubernetes 1.37 names them.
//
// All maintenances that select a Node determine its conditions together, independent of the order in which they are reconciled:
//
//	stage Idle            MaintenancePlanned
//	stage Cordon, Drain   MaintenanceInProgress
//	stage Drain           Drained once all of them have drained the Node, DrainInProgress until then
//
// Kubernetes defines no owner of these conditions. This project's have the reason NodeMaintenance. A condition with another reason is
// neither removed nor overwritten, unless a maintenance requires it to be True and it is not.
package nodecondition

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Types are the types of the conditions, in the order in which they are set.
var Types = []corev1.NodeConditionType{
	v1alpha1.NodeMaintenancePlanned, v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress, v1alpha1.NodeDrained,
}

// maxNamed is how many NodeMaintenances the message of a condition names.
const maxNamed = 5

// Maintenance is a NodeMaintenance that selects the Node.
type Maintenance struct {
	Name  string
	Stage v1alpha1.NodeMaintenanceStage
	// Ending means that the NodeMaintenance is being deleted, and requires no conditions.
	Ending bool
	// Waiting means that the drain of the Node waits because of maxParallelNodes, Drained that the maintenance has drained it.
	Waiting, Drained bool
}

// Wanted returns the conditions that the Node must have, with their messages.
func Wanted(maintenances []Maintenance) map[corev1.NodeConditionType]string {
	var planned, inProgress, draining, drained []string
	for _, m := range maintenances {
		switch {
		case m.Ending:
		case m.Stage == v1alpha1.StageIdle:
			planned = append(planned, m.Name)
		case m.Stage == v1alpha1.StageCordon:
			inProgress = append(inProgress, m.Name)
		case m.Stage == v1alpha1.StageDrain:
			inProgress = append(inProgress, m.Name)
			switch {
			case m.Drained:
				drained = append(drained, m.Name)
			case !m.Waiting:
				draining = append(draining, m.Name)
			}
		}
	}
	wanted := map[corev1.NodeConditionType]string{}
	want := func(conditionType corev1.NodeConditionType, state string, names []string) {
		if len(names) > 0 {
			wanted[conditionType] = state + " by " + list(names)
		}
	}
	want(v1alpha1.NodeMaintenancePlanned, "Maintenance is planned", planned)
	want(v1alpha1.NodeMaintenanceInProgress, "Under maintenance", inProgress)
	want(v1alpha1.NodeDrainInProgress, "Being drained", draining)
	if len(draining) == 0 {
		want(v1alpha1.NodeDrained, "Drained", drained)
	}
	return wanted
}

func list(names []string) string {
	slices.Sort(names)
	return text.Named("NodeMaintenance", names, maxNamed)
}

// Changes returns which conditions must be set on the Node, and which of this project's conditions must be removed. Both are empty if the
// Node has the wanted conditions.
func Changes(present []corev1.NodeCondition, wanted map[corev1.NodeConditionType]string,
	now time.Time,
) (set []corev1.NodeCondition, remove []corev1.NodeConditionType) {
	for _, conditionType := range Types {
		message, isWanted := wanted[conditionType]
		condition, isThere := find(present, conditionType)
		switch {
		case isWanted && isThere && condition.Status == corev1.ConditionTrue && (!isOurs(condition) || condition.Message == message):
		case isWanted:
			since := metav1.NewTime(now.Truncate(time.Second))
			if isThere && condition.Status == corev1.ConditionTrue {
				since = condition.LastTransitionTime
			}
			set = append(set, corev1.NodeCondition{
				Type: conditionType, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonNodeMaintenance, Message: message,
				LastHeartbeatTime: metav1.NewTime(now.Truncate(time.Second)), LastTransitionTime: since,
			})
		case isThere && isOurs(condition):
			remove = append(remove, conditionType)
		}
	}
	return set, remove
}

// HasMaintenanceConditions reports whether the Node has a condition of this project.
func HasMaintenanceConditions(present []corev1.NodeCondition) bool {
	for _, conditionType := range Types {
		if condition, isThere := find(present, conditionType); isThere && isOurs(condition) {
			return true
		}
	}
	return false
}

// SameMaintenanceConditions reports whether two states of a Node's conditions agree in the types of this package.
func SameMaintenanceConditions(before, after []corev1.NodeCondition) bool {
	for _, conditionType := range Types {
		a, inBefore := find(before, conditionType)
		b, inAfter := find(after, conditionType)
		if inBefore != inAfter || a.Status != b.Status || a.Reason != b.Reason || a.Message != b.Message {
			return false
		}
	}
	return true
}

func isOurs(condition corev1.NodeCondition) bool {
	return condition.Reason == v1alpha1.ReasonNodeMaintenance
}

func find(conditions []corev1.NodeCondition, conditionType corev1.NodeConditionType) (corev1.NodeCondition, bool) {
	for _, condition := range conditions {
		if condition.Type == conditionType {
			return condition, true
		}
	}
	return corev1.NodeCondition{}, false
}
