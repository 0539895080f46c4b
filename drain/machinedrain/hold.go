package machinedrain

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// Hook is a pre-drain hook on a Machine.
type Hook struct {
	// Name is the part of the annotation after its domain, and Owner its value, which names the owner by convention.
	Name, Owner string
}

// HoldingHooks returns the hooks that hold the drain of a Machine, by name: while a deleted Machine has a pre-drain hook of another owner,
// its Node is not drained, as by Cluster API. policy is the one that the Machine follows, nil if it has none or if it is not known: it
// ignores no hook then.
func HoldingHooks(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) []Hook {
	if m.DeletionTimestamp.IsZero() {
		return nil
	}
	return OtherHooks(m, policy)
}

// OtherHooks returns the hooks that hold the drain of a Machine as soon as it is deleted, see HoldingHooks. As in Cluster API, every
// annotation that starts with the domain of pre-drain hooks is one.
func OtherHooks(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) []Hook {
	var hooks []Hook
	for annotation, owner := range m.Annotations {
		if annotation == v1alpha1.PreDrainHookAnnotation || !strings.HasPrefix(annotation, clusterv1.PreDrainDeleteHookAnnotationPrefix) {
			continue
		}
		name := strings.TrimPrefix(annotation, clusterv1.PreDrainDeleteHookAnnotationPrefix+"/")
		if policy == nil || !slices.Contains(policy.Spec.IgnoredPreDrainHooks, name) {
			hooks = append(hooks, Hook{Name: name, Owner: owner})
		}
	}
	slices.SortFunc(hooks, func(a, b Hook) int { return cmp.Compare(a.Name, b.Name) })
	return hooks
}

const (
	// maxHooks is the maximum number of hooks that a message names, and maxOwner the maximum length of an owner, in runes: it is text of
	// another actor.
	maxHooks = 5
	maxOwner = 100
)

// HooksText names hooks with their owners.
func HooksText(hooks []Hook) string {
	names := make([]string, 0, len(hooks))
	for _, hook := range hooks {
		name := text.Cut(hook.Name, maxOwner)
		if owner := text.Line(hook.Owner, maxOwner); owner != "" {
			name += " (owner " + owner + ")"
		}
		names = append(names, name)
	}
	return text.List(names, maxHooks)
}

// HoldMessage says which hooks hold the drain of a Machine.
func HoldMessage(hooks []Hook) string {
	return "Waiting for other pre-drain hooks to be removed: " + HooksText(hooks) + ". Until then, no Pod of the Node is evicted and no drain timeout counts"
}

// WasHeldByHooks reports whether the record of a hold is on a deleted Machine: hooks of other owners hold its drain, or the drain has not
// continued or begun since.
func WasHeldByHooks(m *clusterv1.Machine) bool { return recordsHold(m) && HasHook(m) }

// recordsHold reports whether the record of a hold is on a deleted Machine. It stays on one that was released before its drain has
// continued or begun.
func recordsHold(m *clusterv1.Machine) bool {
	_, recorded := m.Annotations[v1alpha1.DrainHeldAnnotation]
	return recorded && !m.DeletionTimestamp.IsZero()
}

// suspendsDrain reports whether the NodeMaintenance of a Machine is suspended in stage Drain because of hooks, of which holding are
// present. The record on the Machine counts for the end of a hold only: the hooks may have been added while no manager ran. Both also count
// after the Machine was released.
func suspendsDrain(m *clusterv1.Machine, holding []Hook) bool {
	return len(holding) > 0 || recordsHold(m)
}

// IsHeldByHooks reports whether hooks of other owners hold the drain of a Machine according to its records. It neither has a turn nor waits
// for one. The records do not depend on a policy, which may be another one for each Machine.
func IsHeldByHooks(m *clusterv1.Machine) bool {
	_, waits := m.Annotations[v1alpha1.WaitingForTurnAnnotation]
	_, continues := m.Annotations[v1alpha1.DrainStartedAnnotation]
	return WasHeldByHooks(m) && !waits && !continues
}

// DrainContinues reports whether a change of a Machine may end the suspension of its NodeMaintenance: the end of a pause or of a recorded
// hold, or, if the hold was not recorded, the removal of a hook of another owner, or a change of labels, by which a policy may select the
// Machine that ignores the hooks. after is nil if the Machine no longer exists: that ends the suspension if the Machine was paused, held or
// released without a drain, or if its drain has not ended: it may have waited for an update of its NodeMaintenance.
func DrainContinues(before, after *clusterv1.Machine) bool {
	if after == nil {
		return HasPauseAnnotation(before) || suspendsDrain(before, HoldingHooks(before, nil)) || WasSkipped(before) || MayDrain(before)
	}
	_, began := after.Annotations[v1alpha1.DrainStartedAnnotation]
	resumes := HasPauseAnnotation(before) && !HasPauseAnnotation(after) || WasHeldByHooks(before) && !WasHeldByHooks(after) && began
	relabeled := MayBeHeldWithoutRecord(after) && !maps.Equal(before.Labels, after.Labels)
	return resumes || relabeled || holdsMore(before, after) && HasHook(after) && !WasHeldByHooks(after)
}

// DrainStops reports whether a change of a Machine may suspend its NodeMaintenance: a pause begins, or another hook holds the drain. Which
// hooks its policy ignores is not considered.
func DrainStops(before, after *clusterv1.Machine) bool {
	return HasPauseAnnotation(after) && !HasPauseAnnotation(before) || holdsMore(after, before)
}

// holdsMore reports whether a hook holds the drain in a version of a Machine that does not in another one. The owner of a hook may change
// its value often.
func holdsMore(m, other *clusterv1.Machine) bool {
	holding := HoldingHooks(other, nil)
	return slices.ContainsFunc(HoldingHooks(m, nil), func(hook Hook) bool {
		return !slices.ContainsFunc(holding, func(same Hook) bool { return same.Name == hook.Name })
	})
}

// MayBeHeldWithoutRecord reports whether hooks of other owners may hold or have held the drain of a Machine that has no record of that.
// Which of them its policy ignores is not considered.
func MayBeHeldWithoutRecord(m *clusterv1.Machine) bool {
	return len(HoldingHooks(m, nil)) > 0 && HasHook(m) && !WasHeldByHooks(m)
}

// heldSince returns since when hooks of other owners have held the drain of a Machine, nil if the Machine has no record of that. The record
// counts even if its time is not credible: the error delays a release, and causes none.
func heldSince(m *clusterv1.Machine, now time.Time) *time.Time {
	if !WasHeldByHooks(m) {
		return nil
	}
	return cmp.Or(credible(m, v1alpha1.DrainHeldAnnotation, now), RequestedAt(m))
}

// isOutdated reports whether the NodeMaintenance of a Machine that was held has begun the drain before, and has not observed yet from when
// the drain timeout counts: it would make final eviction attempts, or delete Pods, too early. One that is not known may have.
func isOutdated(m *clusterv1.Machine, maintenance lookup.Result[v1alpha1.NodeMaintenance]) bool {
	present, found := maintenance.Get()
	if !found || present.Spec.Stage != v1alpha1.StageDrain {
		return !maintenance.IsKnown()
	}
	continues := recorded(m, v1alpha1.DrainStartedAnnotation)
	if continues == nil {
		return true
	}
	start, hasTimeout := present.DrainStart(), ptr.Deref(present.Spec.Evacuation.DrainTimeoutSeconds, 0) > 0
	return hasTimeout && start != nil && start.Before(*continues)
}
