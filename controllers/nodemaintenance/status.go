package nodemaintenance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// statusInterval is the minimum time between two status patches that only report progress. A drain that waits for budgets takes long, and
// each patch is load on the workload cluster.
const statusInterval = 2 * time.Second

// report patches the status if it has changed: at once if a stage, a condition or the selection has changed, otherwise at most once in an
// interval.
func (r *Reconciler) report(ctx context.Context, s *scope) (bool, error) {
	before, m := s.before, s.maintenance
	m.Status.ObservedGeneration = m.Generation
	startStages(m, s.now)
	reportNodes(s)
	reportConditions(s)
	reportPodsRemaining(s)
	reportFinalAttempt(s)
	reportMachineDeleted(s)
	if apiequality.Semantic.DeepEqual(before.Status, m.Status) {
		return true, nil
	}
	matters := !apiequality.Semantic.DeepEqual(before.Status.Conditions, m.Status.Conditions) ||
		!apiequality.Semantic.DeepEqual(before.Status.StageStatuses, m.Status.StageStatuses) ||
		!nodesInStatus(before).Equal(nodesInStatus(m))
	if due := r.statuses.NextWrite(s.request, s.now, r.interval(s)); !matters && s.now.Before(due) {
		s.requeueBy(due)
		return true, nil
	}
	changed := before.DeepCopy()
	changed.Status = m.Status
	if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, errors.Wrapf(client.IgnoreNotFound(err), "patching the status of NodeMaintenance %s", m.Name)
	}
	r.statuses.Record(s.request, s.now)
	if drained := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained); drained != nil && drained.Status == metav1.ConditionTrue &&
		!meta.IsStatusConditionTrue(before.Status.Conditions, v1alpha1.NodeMaintenanceDrained) {
		ctrl.LoggerFrom(ctx).Info("Drained")
		r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeNormal, eventDrained, drained.Message)
	}
	r.recordStageEvents(s)
	r.recordPodsRemainingEvent(s)
	r.recordMachineDeletedEvent(s)
	s.before = changed
	s.maintenance.ResourceVersion = changed.ResourceVersion
	return true, nil
}

// interval returns the minimum time between two status patches that only report progress. It does not grow if the drain targets have
// changed, since other components act on them. For counts and messages, it grows with the number of concurrent drains.
func (r *Reconciler) interval(s *scope) time.Duration {
	if !apiequality.Semantic.DeepEqual(publishedTargets(s.before), publishedTargets(s.maintenance)) {
		return statusInterval
	}
	return max(statusInterval, r.statuses.FairInterval(s.now, func(other workload.Request) bool { return other.Cluster == s.request.Cluster }))
}

// recordStageEvents writes events about fast-forwarded Nodes and implausible selections that the previous status did not report.
func (r *Reconciler) recordStageEvents(s *scope) {
	before, m := &s.before.Status, s.maintenance
	if s.decision != nil {
		for _, message := range progress.FastForwards(before.NodeStatuses, m.Status.NodeStatuses, s.decision.Nodes) {
			r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeNormal, eventFastForwarded, message)
		}
	}
	judged := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.NodeMaintenanceSelectionPlausible)
	if judged == nil || judged.Status == metav1.ConditionTrue {
		return
	}
	if known := meta.FindStatusCondition(before.Conditions, judged.Type); known == nil || known.Reason != judged.Reason {
		r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeWarning, judged.Reason, judged.Message)
	}
}

// startStages records the start time of the current stage. Stage Drain includes stage Cordon.
func startStages(m *v1alpha1.NodeMaintenance, now time.Time) {
	stages := []v1alpha1.NodeMaintenanceStage{m.Spec.Stage}
	if m.Spec.Stage == v1alpha1.StageDrain {
		stages = []v1alpha1.NodeMaintenanceStage{v1alpha1.StageCordon, v1alpha1.StageDrain}
	}
	for _, stage := range stages {
		if m.StageStart(stage) == nil {
			m.Status.StageStatuses = append(m.Status.StageStatuses, v1alpha1.StageStatus{Name: stage, StartTimestamp: metav1.NewTime(now.Truncate(time.Second))})
		}
	}
}

// publishedTargets returns the drain targets in the status, by Node.
func publishedTargets(m *v1alpha1.NodeMaintenance) map[string][]v1alpha1.DrainTarget {
	return progress.Targets(&m.Status)
}

// reportNodes sets the nodeStatuses and the summary: the selected Nodes and, in stage Drain, the progress on each of them. In stage
// Complete, and until the Pods are observed, it keeps the previous progress.
func reportNodes(s *scope) {
	m := s.maintenance
	if m.Spec.Stage != v1alpha1.StageComplete {
		recordSelectedNodes(s)
	}
	if m.Spec.Stage == v1alpha1.StageIdle || m.Spec.Stage == v1alpha1.StageCordon {
		progress.Fit(m, m.Status.NodeStatuses)
	}
	if m.Spec.Stage != v1alpha1.StageDrain {
		m.Status.Summary.Nodes = int32(len(s.nodes)) //nolint:gosec // bounded by the size of a cluster
		return
	}
	if s.decision == nil {
		m.Status.NodeStatuses = m.Status.NodeStatuses[:min(len(m.Status.NodeStatuses), progress.MaxNodes)]
		return
	}
	statuses := make([]v1alpha1.NodeMaintenanceNodeStatus, 0, len(s.nodes))
	summary := v1alpha1.NodeMaintenanceSummary{Nodes: int32(len(s.nodes)), Blocking: text.Cut(s.decision.Blocking, text.MaxMessage)} //nolint:gosec // same
	var longest *v1alpha1.BlockedPod
	for _, node := range s.nodes {
		decided := s.decision.Nodes[node.Name]
		if s.refused[node.Name] != nil && !decided.Drained {
			decided.Message = waitingForCordon
		}
		blocked := blockedPods(s, node.Name)
		statuses = append(statuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef:               v1alpha1.NodeReference{Name: node.Name},
			DrainTargets:          decided.Targets,
			DrainMessage:          decided.Message,
			Drained:               decided.Drained,
			PodsPendingEvacuation: decided.Pending,
			PodsEvacuating:        decided.Evacuating,
			PodsSkipped:           decided.Skipped,
			Blocked:               blocked,
		})
		summary.PodsPending += decided.Pending
		summary.PodsEvacuating += decided.Evacuating
		summary.PodsSkipped += decided.Skipped
		if decided.Drained {
			summary.DrainedNodes++
		}
		if len(blocked) > 0 && (longest == nil || blocked[0].Since.Before(longest.Since)) {
			longest = &blocked[0]
		}
	}
	if longest != nil && !s.decision.Drained {
		summary.Blocking = text.Cut(longest.Pod+": "+longest.Why, text.MaxMessage)
	}
	summary.Progress = fmt.Sprintf("%d/%d", summary.DrainedNodes, summary.Nodes)
	slices.SortFunc(statuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return cmp.Compare(a.NodeRef.Name, b.NodeRef.Name) })
	m.Status.Summary = summary
	progress.Fit(m, statuses)
}

// waitingForCordon is the drain message of a Node that could not be cordoned.
const waitingForCordon = "Waiting for the Node to be cordoned"

// blockedPods returns the blocked Pods of a Node.
func blockedPods(s *scope, node string) []v1alpha1.BlockedPod {
	pods := make([]progress.Pod, 0, len(s.pods[node]))
	for _, view := range s.pods[node] {
		pods = append(pods, progress.Pod{
			Namespace: view.pod.Namespace, Name: view.pod.Name, Verdict: view.verdict, Finished: view.Planned.Finished,
			Deletion: view.pod.DeletionTimestamp, Evacuation: s.evacuations[view.pod.UID], Refused: s.notCreated[view.pod.UID],
			Returned: returnedSince(s, view),
		})
	}
	return progress.Blocked(pods, metav1.NewTime(ptr.Deref(s.maintenance.StageStart(v1alpha1.StageDrain), s.now)), s.now)
}

// reportConditions sets the conditions SelectionPlausible, Cordoned and Drained.
func reportConditions(s *scope) {
	set := func(conditionType string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&s.maintenance.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: status, Reason: reason, Message: message,
			ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
		})
	}
	if s.selection != nil {
		if plausible, reason, message := nodeselection.CheckPlausible(*s.selection); plausible {
			set(v1alpha1.NodeMaintenanceSelectionPlausible, metav1.ConditionTrue, reason, message)
		} else {
			set(v1alpha1.NodeMaintenanceSelectionPlausible, metav1.ConditionFalse, reason, message)
		}
	}
	stage := s.maintenance.Spec.Stage
	switch {
	case stage != v1alpha1.StageCordon && stage != v1alpha1.StageDrain:
		set(v1alpha1.NodeMaintenanceCordoned, metav1.ConditionFalse, v1alpha1.ReasonNotCordoned, "")
	case len(s.nodes) == 0:
		set(v1alpha1.NodeMaintenanceCordoned, metav1.ConditionFalse, v1alpha1.ReasonNoNodesSelected, "The nodeSelector selects no Node")
	case len(s.refused) > 0:
		set(v1alpha1.NodeMaintenanceCordoned, metav1.ConditionFalse, v1alpha1.ReasonCordonFailed, s.cordonRefused())
	default:
		set(v1alpha1.NodeMaintenanceCordoned, metav1.ConditionTrue, v1alpha1.ReasonCordoned, "")
	}
	switch {
	case stage != v1alpha1.StageDrain:
		set(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonNotDraining, "")
	case len(s.nodes) == 0:
		set(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonNoNodesSelected, "The nodeSelector selects no Node")
	case s.decision == nil:
		set(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonPodsNotObserved, s.waiting)
	case s.decision.Drained:
		set(v1alpha1.NodeMaintenanceDrained, metav1.ConditionTrue, v1alpha1.ReasonDrained, "")
	case len(s.ruleProblem) > 0:
		set(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonInvalidDrainRule, text.Cut(s.ruleProblem[0].String(), text.MaxMessage))
	default:
		// The summary and the nodeStatuses name what the drain waits for. A condition that changed with every Pod would cause a
		// status patch with every Pod.
		set(v1alpha1.NodeMaintenanceDrained, metav1.ConditionFalse, v1alpha1.ReasonDraining, "")
	}
}
