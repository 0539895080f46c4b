// Package lifecycle decides which conditions a Node carries while it is maintained, so that whoever looks at Nodes alone can
// see it. The conditions are those of KEP-5683, as Kubernetes 1.37 names them.
//
// The maintenances that select a Node say together what it carries, so it doesn't matter which of them is looked at first:
//
//	stage Idle            MaintenancePlanned
//	stage Cordon, Drain   MaintenanceInProgress
//	stage Drain           Drained once all of them have drained the Node, DrainInProgress until then
//
// Kubernetes names no owner of these conditions. Ours carry the reason NodeMaintenance; others' are neither taken away nor
// written over, unless they deny what is so.
package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// Types of the conditions, in the order in which they are set.
var Types = []corev1.NodeConditionType{
	v1alpha1.NodeMaintenancePlanned, v1alpha1.NodeMaintenanceInProgress, v1alpha1.NodeDrainInProgress, v1alpha1.NodeDrained,
}

// maxNamed is how many maintenances a condition names.
const maxNamed = 5

// Maintenance is a maintenance that selects a Node, as it is seen from there.
type Maintenance struct {
	Name  string
	Stage v1alpha1.NodeMaintenanceStage
	// Ending: it is being deleted. It wants nothing of the Node any more.
	Ending bool
	// Drained: it has no live Pod left on the Node that must go.
	Drained bool
}

// Wanted says which conditions a Node is to carry, each with its message.
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
			if m.Drained {
				drained = append(drained, m.Name)
			} else {
				draining = append(draining, m.Name)
			}
		}
	}
	wanted := map[corev1.NodeConditionType]string{}
	want := func(conditionType corev1.NodeConditionType, says string, names []string) {
		if len(names) > 0 {
			wanted[conditionType] = says + " by " + list(names)
		}
	}
	want(v1alpha1.NodeMaintenancePlanned, "Maintenance is planned", planned)
	want(v1alpha1.NodeMaintenanceInProgress, "Maintained", inProgress)
	want(v1alpha1.NodeDrainInProgress, "Being drained", draining)
	if len(draining) == 0 {
		want(v1alpha1.NodeDrained, "Drained", drained)
	}
	return wanted
}

func list(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("NodeMaintenances %s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	if len(names) == 1 {
		return "NodeMaintenance " + names[0]
	}
	return "NodeMaintenances " + strings.Join(names, ", ")
}

// Changes says what must be done to a Node's conditions so that it carries those that are wanted: which to set, and which of
// ours to remove. Both are empty where nothing is to be done.
func Changes(present []corev1.NodeCondition, wanted map[corev1.NodeConditionType]string, now time.Time) (set []corev1.NodeCondition, remove []corev1.NodeConditionType) {
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

// Carried says whether a Node carries a condition of ours.
func Carried(present []corev1.NodeCondition) bool {
	for _, conditionType := range Types {
		if condition, isThere := find(present, conditionType); isThere && isOurs(condition) {
			return true
		}
	}
	return false
}

// Same says whether two states of a Node's conditions are the same as far as this package looks at them. What kubelets
// report is none of it.
func Same(before, after []corev1.NodeCondition) bool {
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
