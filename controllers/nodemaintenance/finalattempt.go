package nodemaintenance

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonset"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// finalAttempts returns the Pods that get their final eviction attempt now, regardless of their step. It counts those whose attempt has not been
// made yet.
func finalAttempts(s *scope) sets.Set[types.UID] {
	called := sets.New[types.UID]()
	drain := draintimeout.DrainOf(s.maintenance)
	if drain == nil {
		return called
	}
	s.lastCall = &finalAttempt{}
	for _, node := range s.nodes {
		unreachable := rules.Unreachable(node)
		for _, view := range s.pods[node.Name] {
			if view.Planned.Finished || !draintimeout.GetsFinalAttempt(view.Type, view.verdict, view.others) {
				continue
			}
			period, _ := daemonset.GracePeriod(view.pod, unreachable)
			if at := drain.FinalAttemptAt(period); s.now.Before(at) {
				s.requeueBy(at)
				s.lastCall.later = true
				continue
			}
			called.Insert(view.pod.UID)
			if !draintimeout.Attempted(view.pod.DeletionTimestamp != nil, s.evacuations[view.pod.UID]) {
				s.lastCall.unheard++
			}
		}
	}
	return called
}

// finalAttempt is the progress of the final eviction attempts.
type finalAttempt struct {
	later   bool // the final eviction attempt of some Pods is not due yet
	unheard int  // number of Pods whose final eviction attempt is due but has not been made
}

// reportFinalAttempt sets the condition FinalEvictionAttempt once the final eviction attempt of every remaining Pod is due. The condition is true when all
// attempts have been made. The hook of a Machine whose drain has timed out is not released before.
func reportFinalAttempt(s *scope) {
	conditions := &s.maintenance.Status.Conditions
	if s.maintenance.Spec.Stage == v1alpha1.StageDrain && s.decision == nil {
		return // the condition stays until the Pods are observed
	}
	if s.lastCall == nil || s.lastCall.later || s.decision.Drained {
		meta.RemoveStatusCondition(conditions, v1alpha1.NodeMaintenanceFinalEvictionAttempt)
		return
	}
	condition := metav1.Condition{
		Type: v1alpha1.NodeMaintenanceFinalEvictionAttempt, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllPodsAttempted,
		ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
	}
	if s.lastCall.unheard > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonAttemptingPods
	}
	meta.SetStatusCondition(conditions, condition)
}
