package nodemaintenance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/budgets"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// trace returns the trace that the drain is a part of: that of the Machine if it is being deleted.
func (s *scope) trace() history.Trace {
	trace := history.Trace{Root: s.maintenance.UID, Cluster: s.request.Cluster, Maintenance: s.maintenance.Name}
	if s.servesDeletion() {
		trace.Root, trace.Machine = s.owner.machine.UID, s.owner.key.Name
	}
	if len(s.nodes) == 1 {
		trace.Node = s.nodes[0].Name
	}
	return trace
}

// servesDeletion reports whether the NodeMaintenance serves a Machine that is being deleted.
func (s *scope) servesDeletion() bool {
	return s.owner != nil && s.owner.machine != nil && !s.owner.machine.DeletionTimestamp.IsZero()
}

// record records what the Pods of the selected Nodes wait for. When the hook of a deleted Machine is released, its drain has ended.
func (r *Reconciler) record(s *scope, targets sets.Set[types.UID]) {
	if s.owner != nil && (s.owner.machine == nil || s.servesDeletion() && !machinedrain.HasHook(s.owner.machine)) {
		return
	}
	observation := history.Observation{
		Nodes: sets.New(nodeNames(s.nodes)...), Drained: meta.IsStatusConditionTrue(s.before.Status.Conditions, v1alpha1.NodeMaintenanceDrained),
		Published: func() map[string][]v1alpha1.DrainTarget { return progress.Targets(&s.before.Status) },
		Budget:    func(pod *corev1.Pod) string { return budgetsOf(s.drain.budgets(), pod) },
	}
	for _, pods := range s.drain.pods {
		for _, pod := range pods {
			observation.Pods = append(observation.Pods, history.Pod{
				Object: pod.object, Type: pod.Planned.Type, Verdict: pod.verdict, Evacuation: pod.evacuation,
				Targeted: targets.Has(pod.object.UID), Finished: pod.Planned.Finished || pod.Planned.IsRecreated || isLeftToKubelet(pod),
			})
		}
	}
	r.Recorder.Observe(s.request, s.trace(), observation, s.now)
}

// isLeftToKubelet reports whether the drain does not wait for the Pod, because it is a static Pod on a Node without an agent.
func isLeftToKubelet(pod drainedPod) bool {
	return pod.Planned.Type == v1alpha1.PodTypeStatic && !pod.Planned.HasEvacuator
}

// maxWaitBudgets is how many PodDisruptionBudgets a wait names. It is kept in memory for each wait of a Pod, and tenants may create many.
const maxWaitBudgets = 3

// budgetsOf returns the names of the PodDisruptionBudgets that select a Pod.
func budgetsOf(index *budgets.Index, pod *corev1.Pod) string {
	if index == nil {
		return ""
	}
	var names []string
	for _, budget := range index.Covering(budgets.PodOf(pod)) {
		names = append(names, "PodDisruptionBudget "+budget.String())
	}
	return text.List(names, maxWaitBudgets)
}

// recordEnd records the end of the drain of a NodeMaintenance that serves no deleted Machine, after the status that says so has been
// stored.
func (r *Reconciler) recordEnd(ctx context.Context, s *scope) {
	if s.servesDeletion() {
		return
	}
	m := s.maintenance
	drained := func(m *v1alpha1.NodeMaintenance) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.NodeMaintenanceDrained)
	}
	if drained(m) && !drained(s.before) && len(s.nodes) > 0 && !s.hadEnded() {
		if line := r.Recorder.RecordDrained(s.request, s.trace(), m, s.now); line != nil {
			ctrl.LoggerFrom(ctx).Info("The drain has ended", line...)
		}
	}
	if m.StageStart(v1alpha1.StageComplete) != nil && s.before.StageStart(v1alpha1.StageComplete) == nil {
		r.Recorder.EndMaintenance(s.request, s.trace(), m, s.now)
	}
}
