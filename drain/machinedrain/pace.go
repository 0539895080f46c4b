package machinedrain

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/outcome"
)

// EndedDrain is a drain of a deleted Machine that has ended, as far as the manager knows it besides the status of the policy.
type EndedDrain struct {
	UID, Machine string
	Policy       string // the name of the policy that the Machine followed
	End          time.Time

	labels map[string]string // of its Node, nil if they are not known any more
}

// AwaitsReplacements reports whether a turn under a policy ends when the evicted Pods are replaced. policy is nil if there is none.
func AwaitsReplacements(policy *v1alpha1.MachineDrainPolicy) bool {
	return policy != nil && policy.Spec.NextDrain == v1alpha1.NextDrainWhenReplaced
}

// ReplacementTimeout returns how long after the end of a drain the next one waits for replacements at most under a policy, or 0.
func ReplacementTimeout(policy *v1alpha1.MachineDrainPolicy) time.Duration {
	if !AwaitsReplacements(policy) {
		return 0
	}
	return seconds(policy.Spec.ReplacementTimeoutSeconds)
}

// ReleasedNow returns the drain of a Machine whose hook is removed now, nil if the next turn does not wait for the replacements of its
// Pods. A Machine whose drain has timed out counts like one that was drained.
func ReleasedNow(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, node *corev1.Node, reason string, now time.Time) *EndedDrain {
	if !AwaitsReplacements(policy) || IsControlPlane(m) || !isResult(reason) {
		return nil
	}
	return &EndedDrain{UID: string(m.UID), Machine: m.Name, Policy: policy.Name, End: now, labels: labelsOf(node)}
}

// ReleasedBefore returns the drain of a deleted Machine that exists after its hook was removed, nil if it was not drained. A
// manager that has just started knows no more of it if the status of the policy does not have it. The caller sets the policy.
func ReleasedBefore(m *clusterv1.Machine) *EndedDrain {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MachineNodeMaintenance)
	if m.DeletionTimestamp.IsZero() || HasHook(m) || IsControlPlane(m) || condition == nil || !isResult(condition.Reason) {
		return nil
	}
	return &EndedDrain{UID: string(m.UID), Machine: m.Name, End: condition.LastTransitionTime.Time}
}

func isResult(reason string) bool {
	return reason == v1alpha1.ReasonMachineDrained || reason == v1alpha1.ReasonTimedOut
}

// Replacing returns contenders for the drains under a policy that have ended in a Cluster and still count as in progress, because the Pods
// that they have evicted are not replaced by ready ones (nextDrain: WhenReplaced). known are drains of the Cluster that this process knows,
// the most accurate last. What became of the Pods of one that the status of the policy does not have is not known, so it counts, too. A
// drain counts until replacementTimeoutSeconds after its end, and no longer. One whose Machine is among the contenders that drain counts
// there.
func Replacing(policy *v1alpha1.MachineDrainPolicy, cluster string, known []EndedDrain, all []Contender, now time.Time) []Contender {
	if !AwaitsReplacements(policy) {
		return nil
	}
	ended, isReplaced := map[string]EndedDrain{}, map[string]bool{}
	for _, drain := range known {
		if drain.Policy == policy.Name {
			ended[drain.UID] = drain
		}
	}
	for i := range policy.Status.RecentDrains {
		recent := &policy.Status.RecentDrains[i]
		if recent.Cluster != cluster {
			continue
		}
		drain := ended[recent.MachineUID]
		drain.UID, drain.Machine, drain.Policy, drain.End = recent.MachineUID, recent.Machine, policy.Name, recent.EndTime.Time
		ended[drain.UID], isReplaced[drain.UID] = drain, outcome.IsComplete(&recent.DrainOutcome)
	}
	var replacing []Contender
	for _, uid := range slices.Sorted(maps.Keys(ended)) {
		drain, limit := ended[uid], LimitOf(nil, policy)
		drains := slices.ContainsFunc(all, func(c Contender) bool { return c.Name == drain.Machine && c.Standing == HasTurn })
		elapsed := now.Sub(drain.End)
		if drains || isReplaced[uid] || elapsed >= ReplacementTimeout(policy) || elapsed < -StallPeriod { // the clock was set back
			continue
		}
		replacing = append(replacing, Contender{
			Name: drain.Machine, Policy: limit.Policy, Topology: limit.Topology, Standing: HasTurn, labels: drain.labels,
			// The wait of other Machines counts from the end, as from the start of a drain: they may be overdue a drain timeout later.
			Began: drain.End, Progress: Progress{Last: drain.End, Observed: drain.End},
			countsUntil: drain.End.Add(ReplacementTimeout(policy)),
		})
	}
	return replacing
}
