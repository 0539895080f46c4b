package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/test/storage"
)

// appearance is how long a Pod may be on a Node before the drain of the Node notices it.
const appearance = 5 * time.Second

// hookHeld checks each release: the Pods of the Node were drained or skipped, or the drain timeout had passed. A Machine and its Node have
// the same name.
func hookHeld(h *History) []string {
	v, l := h.verdicts(), h.limits()
	lives := h.Workload.lives()
	var found []string
	for _, r := range h.releases() {
		end, not := l.drainMayEnd(r.machine, r.stored)
		why := l.excuse(r, end, not)
		if why == "" {
			continue
		}
		from, until := h.Workload.Clock.Before(r.requested.Add(-appearance)), h.Workload.Clock.After(r.stored)
		var undrained []string
		for _, pod := range lives {
			node, bound := pod.boundSince()
			if node != r.machine || bound > from || pod.goneSince() <= until || isFinishedAt(pod, until) {
				continue
			}
			stays := isOfDaemonSet(pod.first()) || pod.isOverdueAt(until, r.stored.Add(h.ClockOff))
			if stays && wasUnreachable(l.nodes[node], from, until) { // M152 for Pods of DaemonSets
				continue
			}
			if needsDrain(v.between(pod, r.requested.Add(-lag), r.stored)) {
				undrained = append(undrained, pod.name)
			}
		}
		if len(undrained) > 0 {
			found = append(found, fmt.Sprintf("%s: Pods %s were on the Node, and %s", r, strings.Join(undrained, " "), why))
		}
	}
	return found
}

// volumesDetached checks that no volume is attached to the Node of a Machine when the hook is removed, unless a Pod that stays uses the
// volume, or the timeout for volumes had passed.
func volumesDetached(h *History) []string {
	l := h.limits()
	lives := h.Workload.lives()
	attachments := timelines[*storagev1.VolumeAttachment](&h.Workload, attachmentKeys)
	var found []string
	for _, r := range h.releases() {
		end, not := l.volumesMayEnd(r.machine, r.stored)
		why := l.excuse(r, end, not)
		from, until := h.Workload.Clock.Before(r.requested.Add(-appearance)), h.Workload.Clock.After(r.stored)
		if why == "" || wasUnreachable(l.nodes[r.machine], h.Workload.Clock.Before(r.requested.Add(-lag)), until) {
			continue
		}
		for name, attachment := range attachments {
			first, attached := attachment.at(from)
			if _, still := attachment.at(until); !attached || !still || first.Spec.NodeName != r.machine ||
				h.uses(lives, r.machine, storage.VolumeOf(first), from, until) {
				continue
			}
			found = append(found, fmt.Sprintf("%s: VolumeAttachment %s of PersistentVolume %s was there, and %s", r, name, storage.VolumeOf(first), why))
		}
	}
	return found
}

// uses returns whether a Pod on a Node used a volume in a period.
func (h *History) uses(lives map[types.UID]*podLife, node, volume string, from, until int64) bool {
	for _, pod := range lives {
		on, bound := pod.boundSince()
		if on == node && bound <= until && pod.goneSince() > from && slices.ContainsFunc(pod.first().Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && volumeOf(pod.first().Namespace, v.PersistentVolumeClaim.ClaimName) == volume
		}) {
			return true
		}
	}
	return false
}

// needsDrain returns whether none of the verdicts is to skip the Pod.
func needsDrain(all []verdict) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(v verdict) bool { return v.behavior == v1alpha1.DrainBehaviorSkip })
}

// wasUnreachable returns whether a Node was unreachable, or did not exist.
func wasUnreachable(node timeline[*corev1.Node], from, until int64) bool {
	return wasGone(node, from, until) || slices.ContainsFunc(node.during(from, until), func(s stored[*corev1.Node]) bool { return isUnreachable(s.object) })
}

func wasGone(node timeline[*corev1.Node], from, until int64) bool {
	return slices.ContainsFunc(node.during(from, until), func(s stored[*corev1.Node]) bool { return !s.exists })
}

func isUnreachable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
}

// evictable is for how long a Pod must have been evictable before a release, so that its final eviction attempt counts as missing.
const evictable = 5 * time.Second

// finalAttemptsMade checks each release because of a drain timeout: a Pod that could be evicted in the last moment, and still was on the
// Node, had a final eviction attempt. An attempt that was refused counts.
func finalAttemptsMade(h *History) []string {
	v, l, lives := h.verdicts(), h.limits(), h.Workload.lives()
	budgets, attempts := timelines[*policyv1.PodDisruptionBudget](&h.Workload, budgetKeys), h.removals()
	var found []string
	for _, r := range h.releases() {
		due, limited := l.finalAttemptsDue(r)
		requested, stored := l.drainEnded(r)
		since := requested.Add(-evictable)
		from, until := h.Workload.Clock.Before(since), h.Workload.Clock.After(stored)
		if !limited || h.isHindered(since, stored) || !l.drainsCordoned(r.machine, from, until) {
			continue
		}
		for _, pod := range lives {
			_, known := v.constantOrder(pod, since.Add(-lag), stored)
			if node, bound := pod.boundSince(); !known || node != r.machine || bound > from || isOfDaemonSet(pod.first()) ||
				!isEvictable(pod, budgets, from, until) {
				continue
			}
			if !slices.ContainsFunc(attempts, func(a removal) bool {
				return a.pod != nil && a.pod.uid == pod.uid && !a.Requested.Before(due) && !a.Requested.After(r.requested)
			}) {
				found = append(found, fmt.Sprintf("%s: no eviction of Pod %s was requested since %s", r, pod.name, due.Format("15:04:05.000")))
			}
		}
	}
	return found
}

// drainEnded returns times at or after which, and at or before which, the drain of a Machine has ended: with the release, or with the
// start of a wait for volumes before it.
func (l *limits) drainEnded(r release) (from, until time.Time) {
	from, until = r.requested, r.stored
	for _, version := range slices.Backward(l.machines[r.machine]) {
		switch {
		case version.revision >= r.after.revision:
		case !version.exists || version.object.Annotations[v1alpha1.VolumeWaitStartedAnnotation] == "":
			return from, until
		default:
			from, until = l.Management.Clock.period(version.revision)
		}
	}
	return from, until
}

// finalAttemptsDue returns when the first final eviction attempt was due at the earliest, if a Machine was released because of its drain
// timeout: in the second half of the timeout, unless the drain deletes Pods, and not before the timeout was set. What is set during the
// wait for volumes does not count: the drain has timed out before.
func (l *limits) finalAttemptsDue(r release) (due time.Time, limited bool) {
	condition := conditionOf(r.before)
	end, not := l.drainMayEnd(r.machine, r.stored)
	if condition == nil || !strings.Contains(condition.Message, history.DrainExceeded) || not != "" {
		return due, false
	}
	timeout := l.timeout(r.machine, r.stored, drainTimeout)
	if due = end.Add(-timeout / 2); l.DeletesOnTimeout {
		due = end.Add(-timeout)
	}
	due = due.Add(-rounding - l.ClockOff)
	var set time.Time // when the present timeout was set
	for i, version := range l.machines[r.machine] {
		if version.exists && version.object.Annotations[v1alpha1.VolumeWaitStartedAnnotation] != "" {
			break
		}
		if i > 0 && version.revision <= r.after.revision && !equalTimeouts(version, l.machines[r.machine][i-1]) {
			_, set = l.Management.Clock.period(version.revision)
		}
	}
	if set.After(due) {
		due = set
	}
	return due, true
}

func equalTimeouts(a, b stored[*clusterv1.Machine]) bool {
	return a.exists && b.exists && ptr.Equal(drainTimeout(a.object), drainTimeout(b.object))
}

// drainsCordoned returns whether the Node of a Machine was drained for it, cordoned and reachable during a whole period.
func (l *limits) drainsCordoned(machine string, from, until int64) bool {
	states := l.nodes[machine].during(from, until)
	if len(states) == 0 || states[0].revision > from || slices.ContainsFunc(states, func(s stored[*corev1.Node]) bool {
		return !s.exists || !s.object.Spec.Unschedulable || isUnreachable(s.object)
	}) {
		return false
	}
	return slices.ContainsFunc(l.maintenances[machine], func(versions timeline[*v1alpha1.NodeMaintenance]) bool {
		states := versions.during(from, until)
		return len(states) > 0 && states[0].revision <= from && !slices.ContainsFunc(states, func(s stored[*v1alpha1.NodeMaintenance]) bool {
			return !s.exists || s.object.Spec.Stage != v1alpha1.StageDrain || s.object.DeletionTimestamp != nil
		})
	})
}

// isEvictable returns whether a Pod ran during a whole period, and no PodDisruptionBudget selected it, or one that allowed a disruption.
func isEvictable(pod *podLife, budgets map[string]timeline[*policyv1.PodDisruptionBudget], from, until int64) bool {
	states := pod.versions.during(from, until)
	if len(states) == 0 || slices.ContainsFunc(states, func(s stored[*corev1.Pod]) bool {
		return !s.exists || s.object.DeletionTimestamp != nil || !rules.Ready(s.object) || s.object.Status.Phase != corev1.PodRunning
	}) {
		return false
	}
	selecting := 0
	for _, budget := range budgets {
		states := budget.during(from, until)
		if !slices.ContainsFunc(states, func(s stored[*policyv1.PodDisruptionBudget]) bool {
			return s.exists && selectsPod(s.object, pod.first())
		}) {
			continue
		}
		selecting++
		if states[0].revision > from || slices.ContainsFunc(states, func(s stored[*policyv1.PodDisruptionBudget]) bool {
			return !s.exists || s.object.Status.DisruptionsAllowed < 1 || s.object.Status.ObservedGeneration < s.object.Generation
		}) {
			return false
		}
	}
	return selecting <= 1
}
