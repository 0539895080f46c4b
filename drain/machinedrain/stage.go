package machinedrain

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// StageOf reads which stage a Machine's annotation asks for; "" where there is none, or one that is no stage.
func StageOf(m *clusterv1.Machine) (stage v1alpha1.NodeMaintenanceStage, problem string) {
	value, asked := m.Annotations[v1alpha1.MachineStageAnnotation]
	switch {
	case !asked:
		return "", ""
	case slices.Contains(stages, v1alpha1.NodeMaintenanceStage(value)):
		return v1alpha1.NodeMaintenanceStage(value), ""
	default:
		return "", fmt.Sprintf("annotation %s: %.40q is not a stage: Idle, Cordon, Drain or Complete", v1alpha1.MachineStageAnnotation, value)
	}
}

// StageCondition says how far the stage has come that a Machine's annotation asks for. m is its NodeMaintenance, nil if there is
// none yet, or any more.
func StageCondition(asked v1alpha1.NodeMaintenanceStage, m *v1alpha1.NodeMaintenance) metav1.Condition {
	condition := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: status, Reason: reason, Message: message}
	}
	switch {
	case asked == v1alpha1.StageComplete && m == nil:
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineCompleted, "No maintenance of the Node is asked for")
	case asked == v1alpha1.StageComplete:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCompleting, "Waiting for NodeMaintenance "+m.Name+" to complete")
	case m == nil:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCordoning, "Waiting for the NodeMaintenance of the Node")
	case StageBefore(asked, m.Spec.Stage):
		return condition(metav1.ConditionFalse, v1alpha1.ReasonInvalidStage, fmt.Sprintf(
			"annotation %s: stages only move forward, and NodeMaintenance %s is in stage %s; take the annotation away to complete it", v1alpha1.MachineStageAnnotation, m.Name, m.Spec.Stage))
	case asked == v1alpha1.StageIdle:
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineAnnounced, "NodeMaintenance "+m.Name+" announces the maintenance of the Node")
	case asked == v1alpha1.StageDrain && Drained(m):
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineDrained, "The Node is drained")
	case asked == v1alpha1.StageDrain:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineDraining, DrainMessage(m))
	case isCordoned(m):
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned, "The Node is cordoned")
	default:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCordoning, "Waiting for NodeMaintenance "+m.Name+" to cordon the Node")
	}
}

func isCordoned(m *v1alpha1.NodeMaintenance) bool {
	cordoned := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceCordoned)
	return cordoned != nil && cordoned.Status == metav1.ConditionTrue && cordoned.ObservedGeneration == m.Generation
}

// KeepFromRemediation sets, or takes away, the annotation that keeps a MachineHealthCheck from deleting a Machine while its Node is
// maintained, and says whether that has changed anything. One that is somebody else's stays as it is.
func KeepFromRemediation(m *clusterv1.Machine, keep bool) (changed bool) {
	value, found := m.Annotations[clusterv1.MachineSkipRemediationAnnotation]
	switch {
	case keep && !found:
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.MachineSkipRemediationAnnotation, v1alpha1.HookOwner)
	case !keep && found && value == v1alpha1.HookOwner:
		delete(m.Annotations, clusterv1.MachineSkipRemediationAnnotation)
	default:
		return false
	}
	return true
}
