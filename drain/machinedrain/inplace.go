package machinedrain

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// RequestedStage returns the stage that is requested for the Node of a Machine that is not being deleted: by its stage annotation, or else
// by an in-place update, see InPlaceStage. It is empty if none is requested or if the annotation is invalid; problem says why it is
// invalid.
func RequestedStage(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) (stage v1alpha1.NodeMaintenanceStage, problem string) {
	if isStaged(m) {
		return StageOf(m)
	}
	return InPlaceStage(m, policy), ""
}

// InPlaceStage returns the stage that the Node of a Machine must reach before Cluster API updates the Machine in place: Drain, Cordon, or
// an empty stage without an update. policy is the one that the Machine follows, nil if no policy selects it. A Machine whose Node users
// exclude from drains is not drained.
func InPlaceStage(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) v1alpha1.NodeMaintenanceStage {
	if policy == nil || !IsUpdatedInPlace(m) || isExcluded(m, clusterv1.ExcludeNodeDrainingAnnotation) {
		return ""
	}
	switch policy.Spec.InPlaceUpdates {
	case v1alpha1.InPlaceUpdatesDrain:
		return v1alpha1.StageDrain
	case v1alpha1.InPlaceUpdatesCordon:
		return v1alpha1.StageCordon
	default:
		return ""
	}
}

// ContinuedStage returns the stage of a running Machine whose NodeMaintenance exists. Stages only move forward: a drain before an in-place
// update continues if the policy then requires only a cordon. For the stage annotation, an earlier stage is invalid.
func ContinuedStage(m *clusterv1.Machine, requested v1alpha1.NodeMaintenanceStage, maintenance *v1alpha1.NodeMaintenance) v1alpha1.NodeMaintenanceStage {
	if !isStaged(m) && requested == v1alpha1.StageCordon && maintenance != nil && maintenance.Spec.Stage == v1alpha1.StageDrain {
		return v1alpha1.StageDrain
	}
	return requested
}

// IsBeforeUpdate reports whether a NodeMaintenance, which may be nil, was requested for the update in place of a running Machine that has
// not completed, and not by a stage annotation.
func IsBeforeUpdate(m *clusterv1.Machine, maintenance *v1alpha1.NodeMaintenance) bool {
	return !isStaged(m) && IsUpdatedInPlace(m) && maintenance != nil && maintenance.Spec.Stage != v1alpha1.StageComplete &&
		maintenance.Annotations[v1alpha1.RequestedForAnnotation] == v1alpha1.RequestedForStage
}

// UpdateContinues reports whether nothing ends the maintenance of a Machine: the manager has allowed its update in place, which Cluster API
// has not completed, and no stage annotation decides. The updater may have stopped the kubelet. So this does not depend on the policy,
// which may be missing only for a moment.
func UpdateContinues(m *clusterv1.Machine) bool {
	return m.DeletionTimestamp.IsZero() && !isStaged(m) && IsUpdatedInPlace(m) && UpdateAllowed(m)
}

// AllowUpdate sets the annotation UpdateAllowedAnnotation when the Node has reached the stage that an in-place update requires: reason is
// that of the Machine's condition. A timeout ends the wait as it does for a deletion. The annotation then stays, so that an update that has
// begun is not interrupted, also if its policy then requires no stage, and is removed when Cluster API has completed the update.
func AllowUpdate(policy *v1alpha1.MachineDrainPolicy, reason string) func(*clusterv1.Machine) (changed bool) {
	return func(m *clusterv1.Machine) bool {
		required := InPlaceStage(m, policy)
		switch {
		case required == "" && (!IsUpdatedInPlace(m) || !UpdateAllowed(m)):
			return removeAnnotations(m, v1alpha1.UpdateAllowedAnnotation)
		case UpdateAllowed(m) || !slices.Contains(results, reason) && (required != v1alpha1.StageCordon || reason != v1alpha1.ReasonMachineCordoned):
			return false
		default:
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.UpdateAllowedAnnotation, bound(m, reason))
			return true
		}
	}
}

// IsUnchanged reports whether a NodeMaintenance as the API server has it is the one that was read from the cache, with the same spec. Its
// stage has not changed then, and it has not been deleted: a deletion increases the generation.
func IsUnchanged(stored, cached *v1alpha1.NodeMaintenance) bool {
	return stored.UID == cached.UID && stored.Generation == cached.Generation
}

// MayBeMaintained reports whether a maintenance of the Node of a running Machine may be requested. It does not know the policy, which
// decides about in-place updates: see RequestedStage.
func MayBeMaintained(m *clusterv1.Machine) bool {
	return isStaged(m) || IsUpdatedInPlace(m)
}

// mayDrainInPlace reports whether the drain of a running Machine is requested, regardless of its policy.
func mayDrainInPlace(m *clusterv1.Machine) bool {
	if isStaged(m) {
		stage, _ := StageOf(m)
		return stage == v1alpha1.StageDrain
	}
	return IsUpdatedInPlace(m)
}

// isStaged reports whether a Machine has the stage annotation.
func isStaged(m *clusterv1.Machine) bool {
	_, staged := m.Annotations[v1alpha1.MachineStageAnnotation]
	return staged
}

// IsUpdatedInPlace reports whether Cluster API updates a Machine in place. Cluster API removes the annotation when the update has
// completed.
func IsUpdatedInPlace(m *clusterv1.Machine) bool {
	_, updating := m.Annotations[clusterv1.UpdateInProgressAnnotation]
	return updating
}

// MayUpdate returns whether the in-place update of a Machine may begin, and otherwise what it waits for. The Machine must be as the API
// server has it: a cached one may have the permission of an earlier update. policy is the one that the Machine follows, nil if no policy
// selects it; it is not needed for a Machine that has UpdateAllowedAnnotation.
func MayUpdate(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) (allowed bool, message string) {
	required := InPlaceStage(m, policy)
	switch {
	case !m.DeletionTimestamp.IsZero():
		return false, "The Machine is being deleted"
	case !IsUpdatedInPlace(m):
		return false, "The Machine has no annotation " + clusterv1.UpdateInProgressAnnotation + ": the update has completed or was withdrawn"
	case !UpdateAllowed(m) && required == "" && !isStaged(m) && RequestedAt(m) != nil: // a policy that requires it may be replaced
		return false, "Waiting for the end of the drain that was requested for the update: no MachineDrainPolicy requires it any more"
	case !UpdateAllowed(m) && policy == nil && HasHook(m):
		return false, "Waiting for the removal of the hook: no MachineDrainPolicy selects the Machine any more, but its policy may be replaced"
	case UpdateAllowed(m), required == "":
		return true, ""
	default:
		return false, waitOfUpdate(m, required)
	}
}

// UpdateAllowed reports whether the manager has allowed the in-place update of this Machine, so that its policy is no longer needed.
func UpdateAllowed(m *clusterv1.Machine) bool {
	return boundValue(m, v1alpha1.UpdateAllowedAnnotation) != ""
}

// waitOfUpdate says what the in-place update of a Machine waits for. A condition with status True is that of an earlier or another
// maintenance.
func waitOfUpdate(m *clusterv1.Machine, required v1alpha1.NodeMaintenanceStage) string {
	if stage, problem := StageOf(m); problem == "" && stage != "" && (stage == v1alpha1.StageComplete || StageBefore(stage, required)) {
		return fmt.Sprintf("Waiting for stage %s of the Node: the annotation %s: %s of the Machine takes precedence; set it to %s or remove it", required,
			v1alpha1.MachineStageAnnotation, stage, required)
	}
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if condition == nil || condition.Status != metav1.ConditionFalse {
		return fmt.Sprintf("Waiting for Cluster API Node Maintenance to begin stage %s of the Node", required)
	}
	return text.Cut(fmt.Sprintf("Waiting for stage %s of the Node (%s): %s", required, condition.Reason, text.Plain(condition.Message)), MaxUpdateMessage)
}

// MaxUpdateMessage is the maximum length of the message of a waiting update, in runes. Cluster API writes it to a condition of the Machine.
const MaxUpdateMessage = 1024
