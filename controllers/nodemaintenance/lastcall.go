package nodemaintenance

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/daemonsets"
	"github.com/capnm/cluster-api-node-maintenance/drain/overtime"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// lastCall finds the Pods that are asked to leave since the drain's time is nearly up, whether their step has come or not. It notes
// how many of them haven't had their chance yet.
func lastCall(s *scope) sets.Set[types.UID] {
	called := sets.New[types.UID]()
	drain := drainTime(s)
	if drain == nil {
		return called
	}
	s.lastCall = &call{}
	for _, node := range s.nodes {
		unreachable := rules.Unreachable(node)
		for _, view := range s.pods[node.Name] {
			if view.finished || !overtime.Called(view.podType, view.verdict, view.others) {
				continue
			}
			period, _ := daemonsets.GracePeriod(view.pod, unreachable)
			if at := drain.CallAt(period); s.now.Before(at) {
				s.lookAgainAt(at)
				s.lastCall.later = true
				continue
			}
			called.Insert(view.pod.UID)
			if !overtime.Asked(view.pod.DeletionTimestamp != nil, s.evacuations[view.pod.UID]) {
				s.lastCall.unheard++
			}
		}
	}
	return called
}

// call is how far the last call has come.
type call struct {
	later   bool // some Pods are asked later
	unheard int  // how many have been asked, and haven't had their chance yet
}

// reportLastCall says that every Pod that must go has been asked to, once the time of the drain is nearly up: a Machine isn't released
// before.
func reportLastCall(s *scope) {
	conditions := &s.maintenance.Status.Conditions
	if s.maintenance.Spec.Stage == v1alpha1.StageDrain && s.decision == nil {
		return // Pods aren't known yet: what was said stays
	}
	if s.lastCall == nil || s.lastCall.later || s.decision.Drained {
		meta.RemoveStatusCondition(conditions, v1alpha1.NodeMaintenanceLastCall)
		return
	}
	condition := metav1.Condition{
		Type: v1alpha1.NodeMaintenanceLastCall, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllPodsAsked,
		ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
	}
	if s.lastCall.unheard > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonAskingPods
	}
	meta.SetStatusCondition(conditions, condition)
}
