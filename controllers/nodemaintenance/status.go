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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// statusInterval is the minimum time between two status patches that only report progress. A drain that waits for budgets takes long, and
// each patch is load on the workload cluster.
const statusInterval = 2 * time.Second

const (
	// maxNextNodes is the maximum number of waiting Nodes that the summary names.
	maxNextNodes = 10
	// maxEventNodes is the maximum number of Nodes that the message of an event names.
	maxEventNodes = 5
)

// report patches the status if it has changed: at once if a stage, a condition or the selection has changed (see Limiter.NextUrgent),
// otherwise at most once in an interval.
func (r *Reconciler) report(ctx context.Context, s *scope) (bool, error) {
	before, m := s.before, s.maintenance
	m.Status.ObservedGeneration = m.Generation
	if !s.uncordonsAgain { // which stages have started decides how the Nodes are restored
		startStages(m, s.now)
	}
	reportNodes(s)
	r.reportProgress(s)
	if err := r.reportConditions(ctx, s); err != nil {
		return false, err
	}
	if apiequality.Semantic.DeepEqual(before.Status, m.Status) {
		return true, nil
	}
	matters := !apiequality.Semantic.DeepEqual(before.Status.Conditions, m.Status.Conditions) ||
		!apiequality.Semantic.DeepEqual(before.Status.StageStatuses, m.Status.StageStatuses) ||
		!nodesInStatus(before).Equal(nodesInStatus(m)) || !joinedInStatus(before).Equal(joinedInStatus(m))
	due := r.statuses.NextUrgent(s.request, s.now)
	if !matters {
		due = r.statuses.NextWrite(s.request, s.now, r.interval(s))
	}
	if s.now.Before(due) { // the next steps must not store a part of what matters: report would not find it to be new then
		s.requeueBy(due)
		return !matters, nil
	}
	base := &v1alpha1.NodeMaintenance{TypeMeta: before.TypeMeta, ObjectMeta: before.ObjectMeta, Status: before.Status} // the spec is large, and is not patched
	changed := &v1alpha1.NodeMaintenance{TypeMeta: before.TypeMeta, ObjectMeta: *before.ObjectMeta.DeepCopy(), Status: m.Status}
	if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, errors.Wrapf(answers.IgnoreDoesNotExist(err), "patching the status of NodeMaintenance %s", m.Name)
	}
	r.statuses.Record(s.request, s.now)
	r.recordEvents(ctx, s)
	r.recordEnd(ctx, s)
	s.before = changed
	s.maintenance.ResourceVersion = changed.ResourceVersion
	return true, nil
}

// reportProgress sets when the drain last made progress, and tells it the machine controller.
func (r *Reconciler) reportProgress(s *scope) {
	if s.maintenance.Spec.Stage != v1alpha1.StageDrain || s.drain == nil {
		r.Clusters.ForgetProgress(s.request)
		return
	}
	var pods []progress.Pod
	for _, node := range s.nodes {
		for _, pod := range s.drain.pods[node.Name] {
			pods = append(pods, progress.Pod{
				Finished: pod.Planned.Finished, Stays: pod.Planned.Stays(s.maintenance.Name), Deletion: pod.object.DeletionTimestamp,
			})
		}
	}
	known, summary := r.Clusters.ProgressOf(s.request, s.maintenance), &s.maintenance.Status.Summary
	present := known
	present.Left, present.OnlyTerminates = progress.Left(pods, s.now)
	summary.LastProgressTime = progress.LastProgress(s.before.Status.Summary, *summary, progress.Observed{
		Before: known.Last, Gone: present.Left < known.Left, Reported: s.reported(),
	}, s.now)
	present.Last = summary.LastProgressTime.Time
	r.Clusters.ObserveProgress(s.request, s.maintenance, present, s.now)
}

// reported returns when an evacuator of a Pod on the Nodes last reported progress, zero if none has.
func (s *scope) reported() (last time.Time) {
	for _, pods := range s.drain.pods {
		for _, pod := range pods {
			if e := pod.evacuation; e != nil && e.Status.EvacuationProgressTimestamp != nil && e.Status.EvacuationProgressTimestamp.After(last) {
				last = e.Status.EvacuationProgressTimestamp.Time
			}
		}
	}
	return last
}

// confirm tells the machine controller whether this process has found the Nodes to be drained, or the final eviction attempts to be made. A
// Node that could not be cordoned is not drained: its next Pod may be about to start. What was found in a watch of Pods that has ended
// since, because contact was lost for example, says nothing.
func (r *Reconciler) confirm(_ context.Context, s *scope) (bool, error) {
	switch {
	case len(s.nodes) == 0 || s.drain == nil || s.observation != r.Clusters.CurrentObservation(s.request.Cluster):
		r.Clusters.WithdrawConfirmation(s.request)
	case s.drain.decision.Drained && len(s.cordonErrors) == 0:
		r.Clusters.ConfirmDrained(s.request, s.maintenance, s.nodes[0].Name, rules.Unreachable(s.nodes[0]), s.podsOfMachine())
	case s.drain.finalAttempt.Done():
		r.Clusters.ConfirmAttempted(s.request, s.maintenance, s.nodes[0].Name)
	default:
		r.Clusters.WithdrawConfirmation(s.request)
	}
	return true, nil
}

// podsOfMachine returns the Pods on the Node of the Machine that the NodeMaintenance serves.
func (s *scope) podsOfMachine() sets.Set[types.UID] {
	pods := sets.New[types.UID]()
	if s.owner == nil {
		return pods
	}
	for _, onNode := range s.drain.pods {
		for _, pod := range onNode {
			pods.Insert(pod.object.UID)
		}
	}
	return pods
}

// joinedInStatus returns the starts of the drains of Nodes that joined later, with the names of the Nodes.
func joinedInStatus(m *v1alpha1.NodeMaintenance) sets.Set[string] {
	joined := sets.New[string]()
	for i := range m.Status.NodeStatuses {
		if status := &m.Status.NodeStatuses[i]; status.DrainStartTime != nil {
			joined.Insert(status.NodeRef.Name + " " + status.DrainStartTime.UTC().Format(time.RFC3339))
		}
	}
	return joined
}

// interval returns the minimum time between two status patches that only report progress. It does not grow if the drain targets have
// changed, since other components act on them. For counts and messages, it grows with the number of concurrent drains.
func (r *Reconciler) interval(s *scope) time.Duration {
	if !apiequality.Semantic.DeepEqual(progress.Targets(&s.before.Status), progress.Targets(&s.maintenance.Status)) {
		return statusInterval
	}
	return max(statusInterval, r.statuses.FairInterval(s.now, func(other workload.Request) bool { return other.Cluster == s.request.Cluster }))
}

// recordEvents writes events about what the previous status did not report.
func (r *Reconciler) recordEvents(ctx context.Context, s *scope) {
	before, m := s.before, s.maintenance
	r.recordFastForwards(s)
	for _, condition := range m.Status.Conditions {
		was := ptr.Deref(meta.FindStatusCondition(before.Status.Conditions, condition.Type), metav1.Condition{})
		isTrue := condition.Status == metav1.ConditionTrue
		becameTrue := isTrue && was.Status != metav1.ConditionTrue
		switch {
		case condition.Type == v1alpha1.NodeMaintenanceDrained && becameTrue && !s.hadEnded():
			ctrl.LoggerFrom(ctx).Info("Drained Nodes", "nodes", len(s.nodes))
			r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeNormal, eventDrained,
				"All Pods that must be drained have terminated or completed on Nodes: "+text.List(nodeNames(s.nodes), maxEventNodes))
		case condition.Type == v1alpha1.NodeMaintenanceMachineDeleted && becameTrue:
			r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeWarning, eventMachineDeleted, condition.Message)
		case condition.Type == v1alpha1.NodeMaintenancePodsRemaining && was.Message != condition.Message:
			r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeWarning, condition.Reason, condition.Message)
		case condition.Type == v1alpha1.NodeMaintenanceSelectionPlausible && !isTrue && was.Reason != condition.Reason:
			r.Clusters.Event(s.request.Cluster, m, corev1.EventTypeWarning, condition.Reason, condition.Message)
		}
	}
}

// recordFastForwards writes events about Pods that are drained before Pods of earlier rows.
func (r *Reconciler) recordFastForwards(s *scope) {
	if s.drain == nil {
		return
	}
	for _, message := range progress.FastForwards(s.before.Status.NodeStatuses, s.maintenance.Status.NodeStatuses, s.drain.decision.Nodes) {
		r.Clusters.Event(s.request.Cluster, s.maintenance, corev1.EventTypeNormal, eventFastForwarded, message)
	}
}

// startStages records the start time of the current stage. Stage Drain includes stage Cordon. A stage does not start before the
// NodeMaintenance is created: if the clock of this manager is behind, the drain must not time out early for the next manager.
func startStages(m *v1alpha1.NodeMaintenance, now time.Time) {
	stages := []v1alpha1.NodeMaintenanceStage{m.Spec.Stage}
	if m.Spec.Stage == v1alpha1.StageDrain {
		stages = []v1alpha1.NodeMaintenanceStage{v1alpha1.StageCordon, v1alpha1.StageDrain}
	}
	if now.Before(m.CreationTimestamp.Time) {
		now = m.CreationTimestamp.Time
	}
	for _, stage := range stages {
		if m.StageStart(stage) == nil {
			m.Status.StageStatuses = append(m.Status.StageStatuses, v1alpha1.StageStatus{Name: stage, StartTimestamp: metav1.NewTime(now.Truncate(time.Second))})
		}
	}
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
	if s.drain == nil {
		m.Status.NodeStatuses = m.Status.NodeStatuses[:min(len(m.Status.NodeStatuses), progress.MaxNodes)]
		return
	}
	statuses := make([]v1alpha1.NodeMaintenanceNodeStatus, 0, len(s.nodes))
	summary := v1alpha1.NodeMaintenanceSummary{Nodes: int32(len(s.nodes)), Blocking: text.Cut(s.drain.decision.Blocking, text.MaxMessage)} //nolint:gosec // same
	var longest *v1alpha1.BlockedPod
	for _, node := range s.nodes {
		status := nodeStatus(s, node)
		statuses = append(statuses, status)
		summary.PodsPending += status.PodsPendingEvacuation
		summary.PodsEvacuating += status.PodsEvacuating
		summary.PodsSkipped += status.PodsSkipped
		if status.Drained {
			summary.DrainedNodes++
		}
		if blocked := status.Blocked; len(blocked) > 0 && (longest == nil || blocked[0].Since.Before(longest.Since)) {
			longest = &blocked[0]
		}
	}
	if longest != nil && !s.drain.decision.Drained {
		summary.Blocking = text.Cut(longest.Pod+": "+longest.Why, text.MaxMessage)
	}
	for _, status := range m.Status.NodeStatuses {
		if slices.Contains(s.unrestored, status.NodeRef.Name) {
			statuses = append(statuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: status.NodeRef})
		}
	}
	summary.PodsEvacuated = progress.Evacuated(m.Status.Summary, summary)
	summary.Progress = fmt.Sprintf("%d/%d", summary.DrainedNodes, summary.Nodes)
	next := s.turns.Next(m.Name)
	summary.NextNodes = next[:min(len(next), maxNextNodes)]
	slices.SortFunc(statuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int { return cmp.Compare(a.NodeRef.Name, b.NodeRef.Name) })
	m.Status.Summary = summary
	progress.Fit(m, statuses)
}

// nodeStatus returns the progress of the drain of a Node.
func nodeStatus(s *scope, node *corev1.Node) v1alpha1.NodeMaintenanceNodeStatus {
	decided := s.drain.decision.Nodes[node.Name]
	status := v1alpha1.NodeMaintenanceNodeStatus{
		NodeRef:               v1alpha1.NodeReference{Name: node.Name},
		DrainStartTime:        s.joinedAt()[node.Name],
		DrainTargets:          decided.Targets,
		DrainMessage:          decided.Message,
		Waiting:               decided.Waiting,
		Drained:               decided.Drained,
		PodsPendingEvacuation: decided.Pending,
		PodsEvacuating:        decided.Evacuating,
		PodsSkipped:           decided.Skipped,
	}
	if s.cordonErrors[node.Name] != nil {
		status.Drained, status.DrainMessage = false, "Waiting for Node "+node.Name+" to be cordoned"
	}
	if !decided.Waiting {
		pods := progressOf(s, node)
		start := metav1.NewTime(ptr.Deref(s.maintenance.StageStart(v1alpha1.StageDrain), s.now))
		if joined := status.DrainStartTime; joined != nil {
			start = *joined
		}
		status.Blocked = progress.Blocked(pods, start, s.now)
		if at := progress.NextOverdue(pods, s.now); !at.IsZero() {
			s.requeueBy(at)
		}
	}
	return status
}

// progressOf returns what the status of a Node tells about its Pods.
func progressOf(s *scope, node *corev1.Node) []progress.Pod {
	drain := drainOf(s, node)
	pods := make([]progress.Pod, 0, len(s.drain.pods[node.Name]))
	for _, pod := range s.drain.pods[node.Name] {
		pods = append(pods, progress.Pod{
			Namespace: pod.object.Namespace, Name: pod.object.Name, Verdict: pod.verdict, Finished: pod.Planned.Finished,
			Deletion: pod.object.DeletionTimestamp, Evacuation: pod.evacuation, Refused: s.drain.createErrors[pod.object.UID],
			NotDeleted: s.drain.deleteErrors[pod.object.UID],
			Returned:   returnedSince(s, pod),
			Shortage:   shortage(drain, node, pod),
		})
	}
	return pods
}
