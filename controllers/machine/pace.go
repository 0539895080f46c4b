package machine

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// released are the drains that this process has ended and that may still count for the turns of their Clusters, because their Pods are not
// replaced. The status of the policy may have them a moment later, and their Machines may vanish before. The zero value is empty.
type released struct {
	mu     sync.Mutex
	drains map[types.NamespacedName][]machinedrain.EndedDrain // by the Cluster
}

// keptReleases is how long a drain is kept: replacementTimeoutSeconds at most.
const keptReleases = time.Hour

// add adds the drain of a Machine before its hook is removed: other Machines may be reconciled as soon as it is.
func (r *released) add(s *scope, result outcome) {
	drain := machinedrain.ReleasedNow(s.machine, s.policy, s.node, result.reason, s.now)
	if drain == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drains == nil {
		r.drains = map[types.NamespacedName][]machinedrain.EndedDrain{}
	}
	for cluster, drains := range r.drains {
		r.drains[cluster] = slices.DeleteFunc(drains, func(d machinedrain.EndedDrain) bool { return s.now.Sub(d.End) >= keptReleases || d.UID == drain.UID })
		if len(r.drains[cluster]) == 0 {
			delete(r.drains, cluster)
		}
	}
	r.drains[s.nameOfCluster()] = append(r.drains[s.nameOfCluster()], *drain)
}

// in returns the drains of a Cluster.
func (r *released) in(cluster types.NamespacedName) []machinedrain.EndedDrain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.drains[cluster])
}

// replacing returns the drains of the Cluster that have ended and still count under the policy of the Machine. machines are those of the
// Cluster, and all the contenders among them.
func (r *Reconciler) replacing(
	ctx context.Context, s *scope, machines []clusterv1.Machine, all []machinedrain.Contender,
) ([]machinedrain.Contender, error) {
	if !machinedrain.AwaitsReplacements(s.policy) {
		return nil, nil
	}
	var known []machinedrain.EndedDrain
	policyOf := r.policyOf(ctx, s)
	for i := range machines {
		drain := machinedrain.ReleasedBefore(&machines[i])
		if drain == nil {
			continue
		}
		policy, _, err := policyOf(&machines[i])
		if err != nil {
			return nil, err
		}
		if policy != nil {
			drain.Policy = policy.Name
			known = append(known, *drain)
		}
	}
	known = append(known, r.released.in(s.nameOfCluster())...)
	known = slices.DeleteFunc(known, func(d machinedrain.EndedDrain) bool { return r.Outcomes != nil && r.Outcomes.IsComplete(d.UID) })
	return machinedrain.Replacing(s.policy, s.nameOfCluster().Name, known, all, s.now), nil
}

// replacedRetry is how often one of the next Machines is reconciled while it waits for replacements: their readiness triggers no event for
// it.
const replacedRetry = 5 * time.Second

// replacedAt returns when a Machine that waits because Pods of ended drains are not replaced is reconciled again, zero if it does not wait
// for that.
func (s *scope) replacedAt() time.Time {
	switch {
	case s.Turn.Replacing == "" || s.Turn.Before >= wakeUps:
		return s.Turn.ReplacedBy
	case s.Turn.ReplacedBy.Sub(s.now) < replacedRetry:
		return s.Turn.ReplacedBy
	default:
		return s.now.Add(replacedRetry)
	}
}
