package machinedrain

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Limit is the maxParallelDrains under which a Machine counts: with the other Machines of its Cluster that follow the same policy.
type Limit struct {
	// Policy is the name of the MachineDrainPolicy that sets it. It is empty if no policy selects the Machine, or if it is not known which
	// does.
	Policy string
	// Max is nil if there is no limit.
	Max *intstr.IntOrString
	// Patience is after how long without progress a drain no longer counts, 0 for never, also if no policy selects the Machine.
	Patience time.Duration
}

// LimitOf returns the limit of the policy that a Machine follows. policy is nil if no policy selects the Machine any more, maybe for a
// moment only: the limit is then the one that the Machine has recorded, see RecordLimit.
func LimitOf(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) Limit {
	if policy != nil {
		return Limit{Policy: policy.Name, Max: policy.Spec.MaxParallelDrains, Patience: seconds(&policy.Spec.TurnPatienceSeconds)}
	}
	limit, name, found := strings.Cut(boundValue(m, v1alpha1.TurnLimitAnnotation), ",")
	if !found {
		return Limit{}
	}
	return Limit{Policy: name, Max: ptr.To(intstr.Parse(limit))}
}

// FollowsAnother reports whether a Machine that has recorded the limit of a policy follows another one. The recorded one may be replaced in
// a moment, as by kubectl replace --force: a broader policy without a limit must not begin the drains of all that wait.
func FollowsAnother(m *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	recorded := LimitOf(m, nil).Policy
	return policy != nil && recorded != "" && recorded != policy.Name
}

// AwaitPolicy returns until when a Machine that waits begins no drain, because it was found at a time that it follows another policy, see
// FollowsAnother. It is zero if the Machine follows that policy now.
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
	case limit.Max == nil:
		return removeAnnotations(m, v1alpha1.TurnLimitAnnotation)
	}
	value := bound(m, limit.Max.String()+","+limit.Policy)
	if m.Annotations[v1alpha1.TurnLimitAnnotation] == value {
		return false
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.TurnLimitAnnotation, value)
	return true
}
