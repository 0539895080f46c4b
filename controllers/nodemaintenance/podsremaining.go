package nodemaintenance

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// maxLeft is the maximum number of DaemonSets that the condition PodsRemaining names.
const maxLeft = 5

// reportPodsRemaining sets the condition PodsRemaining, which names the DaemonSets whose Pods stay on the Nodes although the drain rules say Drain:
// see package drain/daemonset.
func reportPodsRemaining(s *scope) {
	conditions := &s.maintenance.Status.Conditions
	if s.maintenance.Spec.Stage == v1alpha1.StageDrain && s.decision == nil {
		return // the condition stays until the Pods are observed
	}
	left := remainingDaemonSets(s)
	if s.maintenance.Spec.Stage != v1alpha1.StageDrain || len(left) == 0 {
		meta.RemoveStatusCondition(conditions, v1alpha1.NodeMaintenancePodsRemaining)
		return
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: v1alpha1.NodeMaintenancePodsRemaining, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDaemonSetToleratesMaintenance,
		Message:            text.Cut("DaemonSets that tolerate the taint "+v1alpha1.NoDaemonSetPodsTaint+" would replace their Pods at once, so these are left: "+text.List(left, maxLeft), text.MaxMessage),
		ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
	})
}

// remainingDaemonSets returns the sorted DaemonSets, as namespace/name, that would replace their Pods on the Nodes and whose live Pods have the
// verdict Drain.
func remainingDaemonSets(s *scope) []string {
	var left []string
	for _, node := range s.nodes {
		for _, view := range s.pods[node.Name] {
			if owner := metav1.GetControllerOfNoCopy(view.pod); view.Planned.ComesBack && !view.Planned.Finished && owner != nil && view.verdict.Behavior == v1alpha1.DrainBehaviorDrain {
				left = append(left, view.pod.Namespace+"/"+owner.Name)
			}
		}
	}
	slices.Sort(left)
	return slices.Compact(left)
}

// recordPodsRemainingEvent writes an event when the message of the condition PodsRemaining has changed.
func (r *Reconciler) recordPodsRemainingEvent(s *scope) {
	was := meta.FindStatusCondition(s.before.Status.Conditions, v1alpha1.NodeMaintenancePodsRemaining)
	is := meta.FindStatusCondition(s.maintenance.Status.Conditions, v1alpha1.NodeMaintenancePodsRemaining)
	if is != nil && (was == nil || was.Message != is.Message) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeWarning, eventDaemonSetToleratesMaintenance, is.Message)
	}
}
