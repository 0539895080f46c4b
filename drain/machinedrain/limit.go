package machinedrain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Limit is the limit under which a Machine counts: with the other Machines of its Cluster that follow the same policy.
type Limit struct {
	// Policy is the name of the MachineDrainPolicy that sets it. It is empty if no policy selects the Machine, or if it is not known which
	// does.
	Policy string
	// Max is maxParallelDrains, nil if it is not set.
	Max *intstr.IntOrString
	// Topology is maxParallelDrainsPerTopology. Its key is empty if it is not set.
	Topology v1alpha1.TopologyDrainLimit
	// Patience is after how long without progress a drain no longer counts, 0 for never, also if no policy selects the Machine.
	Patience time.Duration
}

// IsSet reports whether there is a limit.
func (l Limit) IsSet() bool { return l.Max != nil || l.Topology.Key != "" }

// LimitOf returns the limit of the policy that a Machine follows. policy is nil if no policy selects the Machine any more, maybe for a
// moment only: the limit is then the one that the Machine has recorded, see RecordLimit.
func LimitOf(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) Limit {
	if policy != nil {
		limit := Limit{
			Policy: policy.Name, Max: policy.Spec.MaxParallelDrains, Topology: policy.Spec.MaxParallelDrainsPerTopology,
			Patience: seconds(&policy.Spec.TurnPatienceSeconds),
		}
		if limit.Topology.Key != "" {
			limit.Topology.MaxDomains = max(limit.Topology.MaxDomains, 1)
		}
		return limit
	}
	return parseLimit(boundValue(m, v1alpha1.TurnLimitAnnotation))
}

// String returns the record of a limit: the maxParallelDrains, the policy, and the maxParallelDrainsPerTopology, if it is set.
func (l Limit) String() string {
	text := ","
	if l.Max != nil {
		text = l.Max.String() + ","
	}
	if text += l.Policy; l.Topology.Key != "" {
		text += fmt.Sprintf(",%s=%d", l.Topology.Key, l.Topology.MaxDomains)
	}
	return text
}

// parseLimit returns the limit of a record, see Limit.String. It is not set if the record is empty or invalid.
func parseLimit(text string) (limit Limit) {
	parts := strings.Split(text, ",")
	if len(parts) < 2 {
		return Limit{}
	}
	if limit.Policy = parts[1]; parts[0] != "" {
		limit.Max = ptr.To(intstr.Parse(parts[0]))
	}
	if len(parts) > 2 {
		key, domains, _ := strings.Cut(parts[2], "=")
		if count, err := strconv.ParseInt(domains, 10, 32); err == nil {
			limit.Topology = v1alpha1.TopologyDrainLimit{Key: key, MaxDomains: max(int32(count), 1)}
		}
	}
	return limit
}

// FollowsAnother reports whether a Machine that has recorded the limit of a policy follows another one. The recorded one may be replaced in
// a moment, as by kubectl replace --force: a broader policy without a limit must not begin the drains of all that wait.
func FollowsAnother(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	recorded := LimitOf(m, nil).Policy
	return policy != nil && recorded != "" && recorded != policy.Name
}

// Followed is the policy that a Machine follows, as one process of the manager remembers it. The zero value remembers none.
type Followed struct {
	policy string    // its name, empty if it is not known
	other  string    // the one that selects the Machine instead, empty if none does
	since  time.Time // when other was found
}

// Next returns what is remembered of a Machine that a policy selects now, nil if none does, and until when its former policy may be
// replaced, see AwaitPolicy; zero if the Machine follows the policy that selects it. A process that remembers none takes the policy whose
// limit the Machine has recorded.
func (f Followed) Next(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy, now time.Time) (next Followed, until time.Time) {
	former := cmp.Or(f.policy, LimitOf(m, nil).Policy)
	switch {
	case policy == nil:
		return Followed{policy: former}, time.Time{}
	case former == "" || former == policy.Name:
		return Followed{policy: policy.Name}, time.Time{}
	case f.other != policy.Name:
		f = Followed{policy: former, other: policy.Name, since: now}
	}
	return f, AwaitPolicy(f.since, now)
}

// Other returns since when another policy than the one that the Machine follows selects it, zero if none does.
func (f Followed) Other() time.Time { return f.since }

// Settled returns what is remembered when the Machine follows the policy that selects it.
func (f Followed) Settled() Followed { return Followed{policy: cmp.Or(f.other, f.policy)} }

// AwaitPolicy returns until when the policy of a Machine may be replaced, because it was found at a time that no policy or another one
// selects the Machine. It is zero if the Machine follows that policy now, or the defaults.
func AwaitPolicy(since, now time.Time) time.Time {
	if until := since.Add(rules.GoneCounts); now.Before(until) {
		return until
	}
	return time.Time{}
}

// WithoutPolicyMessage is added to the message of a drain whose MachineDrainPolicy was deleted or changed. reason is that of the condition
// of the Machine.
func WithoutPolicyMessage(m *clusterv1.Machine, reason string) string {
	former := LimitOf(m, nil).Policy
	if reason != v1alpha1.ReasonWaitingForTurn || former == "" {
		return WithoutPolicy
	}
	return "No MachineDrainPolicy selects the Machine any more: until one does, the last maxParallelDrains of MachineDrainPolicy " +
		former + " limits its drain, which otherwise uses the defaults"
}

// RecordLimit records on a Machine under which limit it waits for a turn, or will when hooks of other owners no longer hold its drain.
// Without a policy, the record stays.
func (c Clock) RecordLimit(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) (changed bool) {
	limit := LimitOf(m, policy)
	switch {
	case policy == nil || c.Waiting == nil && c.Held == nil:
		return false
	case !limit.IsSet():
		return removeAnnotations(m, v1alpha1.TurnLimitAnnotation)
	}
	value := bound(m, limit.String())
	if m.Annotations[v1alpha1.TurnLimitAnnotation] == value {
		return false
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.TurnLimitAnnotation, value)
	return true
}
