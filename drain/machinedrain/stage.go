package machinedrain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
)

// StageOf returns the stage that a Machine's annotation requests. It is empty if the annotation is absent or invalid; problem says why it
// is invalid.
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

// WantedStage returns the stage of the NodeMaintenance that the manager keeps for a Machine, and creates again if it no longer exists. It
// is empty if the manager keeps none. All who must not restore a Node whose maintenance continues ask it. cluster is nil if it does not
// exist, policy if no policy selects the Machine; outdated is the stage that the rollout of its MachineDeployment requests.
func WantedStage(m *clusterv1.Machine, cluster *clusterv1.Cluster, policy *v1alpha1.MachineDrainPolicy,
	outdated v1alpha1.NodeMaintenanceStage,
) v1alpha1.NodeMaintenanceStage {
	if !m.DeletionTimestamp.IsZero() {
		if HasHook(m) {
			return v1alpha1.StageDrain
		}
		return ""
	}
	switch {
	case cluster == nil || !cluster.DeletionTimestamp.IsZero():
		return ""
	case UpdateContinues(m): // also without a policy
		return cmp.Or(InPlaceStage(m, policy), v1alpha1.StageCordon)
	case policy == nil:
		return ""
	}
	requested, problem := RequestedStage(m, policy)
	switch {
	case problem != "" || requested == v1alpha1.StageComplete:
		return ""
	case requested != "":
		return requested
	default:
		return outdated
	}
}

// StageCondition returns the condition of a Machine whose annotation requests a stage other than Drain. m is its NodeMaintenance, nil if it
// does not exist.
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
			"annotation %s: stages only move forward, and NodeMaintenance %s is in stage %s; remove the annotation to complete it", v1alpha1.MachineStageAnnotation,
			m.Name, m.Spec.Stage))
	case requested == v1alpha1.StageIdle:
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineAnnounced, "NodeMaintenance "+m.Name+" announces the maintenance of the Node")
	case isTrue(m, v1alpha1.NodeMaintenanceCordoned):
		return condition(metav1.ConditionTrue, v1alpha1.ReasonMachineCordoned, "The Node is cordoned")
	default:
		return condition(metav1.ConditionFalse, v1alpha1.ReasonMachineCordoning, "Waiting for NodeMaintenance "+m.Name+" to cordon the Node")
	}
}

// UnmanagedMessage returns the message of the condition of a running Machine with the stage annotation that no policy selects. m is its
// NodeMaintenance, nil if it does not exist: one that has begun continues.
func UnmanagedMessage(m *v1alpha1.NodeMaintenance) string {
	if m == nil || m.Spec.Stage == v1alpha1.StageComplete || !m.DeletionTimestamp.IsZero() {
		return "No MachineDrainPolicy selects the Machine, so the annotation " + v1alpha1.MachineStageAnnotation + " has no effect"
	}
	return fmt.Sprintf("No MachineDrainPolicy selects the Machine any more: NodeMaintenance %s continues in stage %s until the annotation %s is removed", m.Name,
		m.Spec.Stage, v1alpha1.MachineStageAnnotation)
}

// RequestDrain records when the drain of a Machine was requested, and disables or enables its remediation as SetRemediation does.
func RequestDrain(now time.Time) func(*clusterv1.Machine) (changed bool) {
	return func(m *clusterv1.Machine) bool {
		changed := SetRemediation(m)
		if drainRequested(m) == nil {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.DrainRequestedAnnotation, bound(m, now.UTC().Format(time.RFC3339)))
			changed = true
		}
		return changed
	}
}

// drainRequested returns since when the drain in place of a Machine has been requested, nil if it is not.
func drainRequested(m *clusterv1.Machine) *time.Time {
	return parse(boundValue(m, v1alpha1.DrainRequestedAnnotation))
}

// bound returns the value of an annotation that counts on one Machine only: it ends with the UID of the Machine. Another actor may copy the
// annotation, for example from the template of a MachineSet or from a backup of another Machine. An old manifest of the same Machine has
// the same UID.
func bound(m *clusterv1.Machine, value string) string { return value + "/" + string(m.UID) }

// boundValue returns the value in an annotation that counts on one Machine only. It is empty if the Machine does not have the annotation,
// or has that of another Machine, or one without a UID, of an earlier version of the manager.
func boundValue(m *clusterv1.Machine, annotation string) string {
	value, uid := m.Annotations[annotation], ""
	if i := strings.LastIndexByte(value, '/'); i >= 0 {
		value, uid = value[:i], value[i+1:]
	}
	if uid != string(m.UID) {
		return ""
	}
	return value
}

// EndMaintenance removes what the maintenance of a running Machine has set on it.
func EndMaintenance(m *clusterv1.Machine) (changed bool) {
	changed = EndDrain(m)
	return EnableRemediation(m) || changed
}

// EndMaintenanceAndRemoveHook is EndMaintenance and RemoveHook.
func EndMaintenanceAndRemoveHook(m *clusterv1.Machine) (changed bool) {
	changed = EndMaintenance(m)
	return RemoveHook(m) || changed
}

// EndDrain removes what a drain has set on a Machine: its request, its clock, and the permission of an in-place update.
func EndDrain(m *clusterv1.Machine) (changed bool) {
	return removeAnnotations(m, append(slices.Clone(clockAnnotations), v1alpha1.DrainRequestedAnnotation, v1alpha1.UpdateAllowedAnnotation)...)
}

// EndFormerDrain removes what the drain in place of a Machine has recorded before its Node was created. That drain was of another Node with
// the same name: neither the turn nor the timeouts of that drain count for this one. A creation in the future, by the clock of a workload
// cluster that is ahead, removes nothing: it would do so again and again, and no timeout would end the drain.
func EndFormerDrain(node *corev1.Node, now time.Time) func(*clusterv1.Machine) (changed bool) {
	return func(m *clusterv1.Machine) (changed bool) {
		if drainRequested(m) == nil || node.CreationTimestamp.After(now) {
			return false
		}
		for _, annotation := range []string{v1alpha1.DrainStartedAnnotation, v1alpha1.DrainEndedAnnotation, v1alpha1.VolumeWaitStartedAnnotation} {
			if t := timeIn(m, annotation); t != nil && t.Before(node.CreationTimestamp.Time) {
				changed = removeAnnotations(m, annotation) || changed
			}
		}
		return changed
	}
}

// WasDrained reports whether the drain of a running Machine has completed in all parts, so that it needs no other step unless Pods must be
// drained again.
func WasDrained(m *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	isReported := condition != nil && condition.Reason == v1alpha1.ReasonMachineDrained && condition.Status == metav1.ConditionTrue
	isRecorded := recorded(m, v1alpha1.DrainEndedAnnotation) != nil && recorded(m, v1alpha1.VolumeWaitStartedAnnotation) == nil
	return m.DeletionTimestamp.IsZero() && (isReported || isRecorded)
}

// RecordDrained records that the drain of a running Machine has completed in all parts, if the Machine has a timeout.
func RecordDrained(now time.Time) func(*clusterv1.Machine) (changed bool) {
	return func(m *clusterv1.Machine) bool {
		changed := removeAnnotations(m, v1alpha1.WaitingForTurnAnnotation, v1alpha1.DrainBlockedAnnotation, v1alpha1.VolumeWaitStartedAnnotation)
		if hasTimeout(m) && recorded(m, v1alpha1.DrainEndedAnnotation) == nil {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.DrainEndedAnnotation, now.UTC().Format(time.RFC3339))
			changed = true
		}
		return changed
	}
}

// SetRemediation disables the remediation of a Machine whose maintenance a user has requested, and enables it otherwise: a
// MachineHealthCheck replaces a Machine whose in-place update fails, as without this provider.
func SetRemediation(m *clusterv1.Machine) (changed bool) {
	if isStaged(m) {
		return DisableRemediation(m)
	}
	return EnableRemediation(m)
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
