package machinedrain

import (
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
)

// HasHook reports whether the Machine has the pre-drain hook of this provider.
func HasHook(m *clusterv1.Machine) bool {
	_, found := m.Annotations[v1alpha1.PreDrainHookAnnotation]
	return found
}

// IsDraining reports whether the Node of a Machine is being drained or waits for that: the Machine is being deleted and the hook delays its
// deletion, or its stage annotation or an in-place update requests the drain and the drain has neither completed nor timed out.
func IsDraining(m *clusterv1.Machine) bool {
	isWanted := !m.DeletionTimestamp.IsZero() || mayDrainInPlace(m) && reasonOf(m) != v1alpha1.ReasonNotManaged
	return isWanted && MayDrain(m)
}

// MayDrain is IsDraining, and also true for a drain in place that nothing valid requests any more, and that has neither completed nor timed
// out: its NodeMaintenance drains the Node until the manager has completed it, and the manager does not while the stage annotation is
// invalid or no policy selects the Machine.
func MayDrain(m *clusterv1.Machine) bool {
	if !m.DeletionTimestamp.IsZero() {
		return HasHook(m)
	}
	return drainRequested(m) != nil && !slices.Contains(results, reasonOf(m))
}

// hasEndedInPlace reports whether the drain in place of a running Machine has completed or timed out.
func hasEndedInPlace(m *clusterv1.Machine) bool {
	return m.DeletionTimestamp.IsZero() && drainRequested(m) != nil && !MayDrain(m)
}

// reasonOf returns the reason of the condition of a Machine, empty if it has none.
func reasonOf(m *clusterv1.Machine) string {
	if condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance); condition != nil {
		return condition.Reason
	}
	return ""
}

// withoutMaintenance are the reasons of the conditions of Machines that have no NodeMaintenance, or had none when their annotation became
// invalid.
var withoutMaintenance = []string{v1alpha1.ReasonNotManaged, v1alpha1.ReasonMachineCompleted, v1alpha1.ReasonInvalidStage}

// MayHaveMaintenance reports whether a NodeMaintenance may exist for a Machine whose policy was deleted: it is being drained, its condition
// says so, or its maintenance has set an annotation.
func MayHaveMaintenance(m *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	isReported := condition != nil && !slices.Contains(withoutMaintenance, condition.Reason)
	return IsDraining(m) || isReported || drainRequested(m) != nil || m.Annotations[clusterv1.MachineSkipRemediationAnnotation] == v1alpha1.HookOwner
}

// RequestedAt returns when the drain of a Machine was requested: by its deletion, its stage annotation or an in-place update. It returns
// nil if it was not.
func RequestedAt(m *clusterv1.Machine) *time.Time {
	if !m.DeletionTimestamp.IsZero() {
		return &m.DeletionTimestamp.Time
	}
	return drainRequested(m)
}

// OnlyReportsDiffer reports whether two versions of a Machine differ only in what controllers of Cluster API report in its status, and by
// which this provider decides nothing.
func OnlyReportsDiffer(a, b *clusterv1.Machine) bool {
	return apiequality.Semantic.DeepEqual(decisive(a), decisive(b))
}

// decisive returns what this provider decides by.
func decisive(m *clusterv1.Machine) *clusterv1.Machine {
	kept := &clusterv1.Machine{ObjectMeta: m.ObjectMeta, Spec: m.Spec}
	kept.ResourceVersion, kept.ManagedFields = "", nil
	kept.Status.NodeRef = m.Status.NodeRef
	for _, condition := range m.Status.Conditions {
		if condition.Type == v1alpha1.MachineNodeMaintenance || condition.Type == clusterv1.MachineOwnerRemediatedCondition {
			kept.Status.Conditions = append(kept.Status.Conditions, metav1.Condition{
				Type: condition.Type, Status: condition.Status, Reason: condition.Reason, Message: condition.Message,
			})
		}
	}
	if m.Status.Deletion != nil && !m.Status.Deletion.WaitForPreTerminateHookStartTime.IsZero() {
		kept.Status.Deletion = &clusterv1.MachineDeletionStatus{WaitForPreTerminateHookStartTime: m.Status.Deletion.WaitForPreTerminateHookStartTime}
	}
	return kept
}

// HookRemoved reports whether another actor has removed the hook of a deleted Machine that has none. It has not if the condition of the
// Machine has the result of the drain, which the manager writes before it removes the hook, or if the Machine was deleted without the hook.
// The result of a drain in place does not count: the manager removes the annotation that requests such a drain together with the hook. If
// the API server has refused the condition, an exclude annotation of the release says the same, unless the drain was skipped. A Machine
// that no policy selected before its deletion had no hook. policy is nil if no policy selects the Machine now.
func HookRemoved(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, maintenance lookup.Result[v1alpha1.NodeMaintenance]) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	_, wasRequested := m.Annotations[v1alpha1.DrainRequestedAnnotation]
	isReported := condition != nil && slices.Contains(results, condition.Reason) && !wasRequested
	if isReported || slices.ContainsFunc(excludes, func(exclude string) bool { return m.Annotations[exclude] == v1alpha1.HookOwner }) {
		return false
	}
	if present, found := maintenance.Get(); found && present.Annotations[v1alpha1.RequestedForAnnotation] == v1alpha1.RequestedForDeletion {
		return true
	}
	// A Machine that is maintained without deletion has a condition also if no policy selects it, and the manager has removed its hook.
	return condition != nil && condition.Reason != v1alpha1.ReasonNotManaged && (policy != nil || !MayBeMaintained(m))
}

// WasSkipped reports whether the manager has released a deleted Machine because its Node is not drained, see Skip. The condition says so
// before the hook is removed. A drain that had begun does not continue.
func WasSkipped(m *clusterv1.Machine) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	return !m.DeletionTimestamp.IsZero() && !HasHook(m) && condition != nil && condition.Reason == v1alpha1.ReasonSkipped
}

// ContinuesAfterSkip reports whether a NodeMaintenance of this management cluster still drains the Node of a Machine that was skipped, see
// WasSkipped.
func ContinuesAfterSkip(maintenance *v1alpha1.NodeMaintenance, machine *clusterv1.Machine, managementCluster string) bool {
	return WasSkipped(machine) && maintenance.Drains() && IsOfManagementCluster(maintenance, managementCluster)
}

// results are the reasons of the condition when a drain has ended.
var results = []string{v1alpha1.ReasonMachineDrained, v1alpha1.ReasonSkipped, v1alpha1.ReasonTimedOut}

// SetHook sets the hook on a running Machine, and removes what an earlier drain and its release have left behind: clusterctl move does not
// preserve deletions.
func SetHook(m *clusterv1.Machine) (changed bool) {
	changed = clearReleaseAnnotations(m)
	if !HasHook(m) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.PreDrainHookAnnotation, v1alpha1.HookOwner)
		changed = true
	}
	return changed
}

// KeepHook neither sets nor removes the hook of a running Machine, and removes what an earlier drain and its release have left behind.
func KeepHook(m *clusterv1.Machine) (changed bool) { return clearReleaseAnnotations(m) }

// RemoveHook removes the hook, and what an earlier drain and its release have left behind.
func RemoveHook(m *clusterv1.Machine) (changed bool) {
	changed = clearReleaseAnnotations(m) || HasHook(m)
	delete(m.Annotations, v1alpha1.PreDrainHookAnnotation)
	return changed
}

// clockAnnotations record the clock of a drain, see Clock.
var clockAnnotations = []string{
	v1alpha1.DrainHeldAnnotation, v1alpha1.WaitingForTurnAnnotation, v1alpha1.TurnLimitAnnotation, v1alpha1.DrainBlockedAnnotation,
	v1alpha1.DrainStartedAnnotation, v1alpha1.DrainEndedAnnotation, v1alpha1.VolumeWaitStartedAnnotation,
}

// Release removes the hook of a deleted Machine. It excludes the Machine from exactly those parts of Cluster API's own drain that have
// completed or timed out here: a copied exclude annotation is removed. It does not change exclude annotations of other authors. The record
// of a hold stays, so that a NodeMaintenance that was suspended does not drain the Node when the Machine is released, see suspendsDrain.
func Release(m *clusterv1.Machine, drainOver, volumesOver bool) {
	held, wasHeld := m.Annotations[v1alpha1.DrainHeldAnnotation], WasHeldByHooks(m)
	delete(m.Annotations, v1alpha1.PreDrainHookAnnotation)
	if EndDrain(m); wasHeld {
		m.Annotations[v1alpha1.DrainHeldAnnotation] = held
	}
	for exclude, over := range map[string]bool{
		clusterv1.ExcludeNodeDrainingAnnotation: drainOver, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation: volumesOver,
	} {
		switch by, excluded := m.Annotations[exclude]; {
		case over && !excluded:
			m.Annotations[exclude] = v1alpha1.HookOwner
		case !over && by == v1alpha1.HookOwner:
			delete(m.Annotations, exclude)
		}
	}
}

// isExcluded reports whether a Machine has one of Cluster API's exclude annotations. One with the value of this provider counts only on a
// deleted Machine without the hook, because the patch that sets it removes the hook: any other Machine has a copy, or what clusterctl move
// has left behind.
func isExcluded(m *clusterv1.Machine, exclude string) bool {
	by, excluded := m.Annotations[exclude]
	isReleased := !m.DeletionTimestamp.IsZero() && !HasHook(m)
	return excluded && (by != v1alpha1.HookOwner || isReleased)
}

// excludes are the annotations by which Cluster API skips parts of the drain.
var excludes = []string{clusterv1.ExcludeNodeDrainingAnnotation, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation}

// RemoveExcludes removes the exclude annotations with the value of this provider from a Machine that is running or has the hook: they are
// copies, or what clusterctl move has left behind. Cluster API would not drain the Node if the Machine were deleted, or its hook removed,
// with them.
func RemoveExcludes(m *clusterv1.Machine) (changed bool) {
	if !m.DeletionTimestamp.IsZero() && !HasHook(m) {
		return false // of its release
	}
	for _, annotation := range excludes {
		if m.Annotations[annotation] == v1alpha1.HookOwner {
			delete(m.Annotations, annotation)
			changed = true
		}
	}
	return changed
}

// clearReleaseAnnotations removes the annotations that a drain and its release have set on a running Machine.
func clearReleaseAnnotations(m *clusterv1.Machine) (changed bool) {
	changed = RemoveExcludes(m)
	if m.DeletionTimestamp.IsZero() && drainRequested(m) != nil {
		return changed // the stage annotation or an in-place update requests a drain, whose clock runs
	}
	return removeAnnotations(m, clockAnnotations...) || changed
}

func removeAnnotations(m *clusterv1.Machine, annotations ...string) (changed bool) {
	for _, annotation := range annotations {
		if _, found := m.Annotations[annotation]; found {
			delete(m.Annotations, annotation)
			changed = true
		}
	}
	return changed
}
