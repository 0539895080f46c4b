package machinedrain

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// StageOf returns the stage that a Machine's annotation requests. It is empty if the annotation is absent or invalid; problem says why it is
// invalid.
func StageOf(m *clusterv1.Machine) (stage v1alpha1.NodeMaintenanceStage, problem string) {
	value, found := m.Annotations[v1alpha1.MachineStageAnnotation]
	switch {
	case !found:
		return "", ""
	case slices.Contains(stages, v1alpha1.NodeMaintenanceStage(value)):
		return v1alpha1.NodeMaintenanceStage(value), ""
	default:
		return "", fmt.Sprintf("annotation %s: %.40q is not a stage: Idle, Cordon, Drain or Complete", v1alpha1.MachineStageAnnotation, value)
	}
}

// StageCondition returns the condition of a Machine whose annotation requests a stage. m is its NodeMaintenance, nil if it does not exist.
func StageCondition(requested v1alpha1.NodeMaintenanceStage, m *v1alpha1.NodeMaintenance) metav1.Condition {
	condition := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.MachineNodeMaintenance, Status: status, Reason: reason, Message: message}
	}
	switch {
	case requested == v1alpha1.StageComplete && m == nil:
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineCompleted, "No maintenance of the Node is requested")
	case requested == v1alpha1.StageComplete:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCompleting, "Waiting for NodeMaintenance "+m.Name+" to complete")
	case m == nil:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCordoning, "Waiting for the NodeMaintenance of the Node")
	case StageBefore(requested, m.Spec.Stage):
		return condition(metav1.ConditionFalse, v1alpha1.ReasonInvalidStage, fmt.Sprintf(
			"annotation %s: stages only move forward, and NodeMaintenance %s is in stage %s; remove the annotation to complete it", v1alpha1.MachineStageAnnotation, m.Name, m.Spec.Stage))
	case requested == v1alpha1.StageIdle:
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineAnnounced, "NodeMaintenance "+m.Name+" announces the maintenance of the Node")
	case requested == v1alpha1.StageDrain && Drained(m):
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineDrained, "The Node is drained")
	case requested == v1alpha1.StageDrain:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineDraining, DrainMessage(m))
	case isTrue(m, v1alpha1.NodeMaintenanceCordoned):
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned, "The Node is cordoned")
	default:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCordoning, "Waiting for NodeMaintenance "+m.Name+" to cordon the Node")
	}
}

// DisableRemediation sets the annotation that keeps a MachineHealthCheck from deleting a Machine while its Node is maintained. It does not
// change an annotation of another author.
func DisableRemediation(m *clusterv1.Machine) (changed bool) {
	if _, found := m.Annotations[clusterv1.MachineSkipRemediationAnnotation]; found {
		return false
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, clusterv1.MachineSkipRemediationAnnotation, v1alpha1.HookOwner)
	return true
}

// EnableRemediation removes the annotation that DisableRemediation sets.
func EnableRemediation(m *clusterv1.Machine) (changed bool) {
	if m.Annotations[clusterv1.MachineSkipRemediationAnnotation] != v1alpha1.HookOwner {
		return false
	}
	delete(m.Annotations, clusterv1.MachineSkipRemediationAnnotation)
	return true
}
