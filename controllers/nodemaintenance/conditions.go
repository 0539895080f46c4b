package nodemaintenance

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/draintimeout"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/progress"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
	"github.com/capnm/cluster-api-node-maintenance/drain/text"
)

// controlPlaneLabel is on the Nodes of the control plane.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// maxDaemonSets is the maximum number of DaemonSets that the condition PodsRemaining names.
const maxDaemonSets = 5

// reportConditions sets the conditions of the NodeMaintenance.
func (r *Reconciler) reportConditions(ctx context.Context, s *scope) error {
	if s.maintenance.Spec.Stage != v1alpha1.StageComplete { // in stage Complete, the condition stays
		if err := reportSelection(ctx, s); err != nil {
			return err
		}
	}
	cordonFailed := r.cordonFailed(s)
	reportCordoned(s, cordonFailed)
	reportDrained(s, cordonFailed)
	reportMachineDeleted(s)
	if s.maintenance.Spec.Stage != v1alpha1.StageDrain || s.drain != nil { // until the Pods are observed, the conditions stay
		reportPodsRemaining(s)
		reportFinalAttempt(s)
	}
	progress.SetHealth(s.maintenance, s.now)
	return nil
}

func (s *scope) setCondition(conditionType string, status bool, reason, message string) {
	condition := metav1.Condition{
		Type: conditionType, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: s.maintenance.Generation, LastTransitionTime: metav1.NewTime(s.now.Truncate(time.Second)),
	}
	if status {
		condition.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.maintenance.Status.Conditions, condition)
}

func (s *scope) removeCondition(conditionType string) {
	meta.RemoveStatusCondition(&s.maintenance.Status.Conditions, conditionType)
}

// reportSelection sets the condition SelectionPlausible. Admission cannot check the selection, since it does not know the other Nodes.
func reportSelection(ctx context.Context, s *scope) (err error) {
	selected := sets.New(nodeNames(s.nodes)...)
	facts := nodeselection.Facts{Selected: selected.Len()}
	for _, node := range s.nodes {
		if _, is := node.Labels[controlPlaneLabel]; is {
			facts.ControlPlane++
		}
	}
	if facts.OtherNode, err = anyOther(ctx, s.client, selected); err != nil {
		return err
	}
	if facts.ControlPlane > 0 {
		if facts.OtherControlPlaneNode, err = anyOther(ctx, s.client, selected, client.HasLabels{controlPlaneLabel}); err != nil {
			return err
		}
	}
	plausible, reason, message := nodeselection.CheckPlausible(facts)
	s.setCondition(v1alpha1.NodeMaintenanceSelectionPlausible, plausible, reason, message)
	return nil
}

// anyOther reports whether a Node outside the given set exists. It lists at most one Node more than the set contains.
func anyOther(ctx context.Context, reader client.Reader, than sets.Set[string], options ...client.ListOption) (bool, error) {
	nodes := &corev1.NodeList{}
	if err := reader.List(ctx, nodes, append(options, client.UnsafeDisableDeepCopy, client.Limit(than.Len()+1))...); err != nil {
		return false, errors.Wrap(err, "listing Nodes")
	}
	return slices.ContainsFunc(nodes.Items, func(node corev1.Node) bool { return !than.Has(node.Name) }), nil
}

func reportCordoned(s *scope, cordonFailed string) {
	switch stage := s.maintenance.Spec.Stage; {
	case stage != v1alpha1.StageCordon && stage != v1alpha1.StageDrain:
		s.setCondition(v1alpha1.NodeMaintenanceCordoned, false, v1alpha1.ReasonNotCordoned, "")
	case len(s.nodes) == 0:
		s.setCondition(v1alpha1.NodeMaintenanceCordoned, false, v1alpha1.ReasonNoNodesSelected, nodeselection.NoNodeMessage)
	case s.maintenance.StaysSchedulable():
		s.setCondition(v1alpha1.NodeMaintenanceCordoned, false, v1alpha1.ReasonNotCordoned, "The Node stays schedulable while its Machine waits for a turn")
	case s.turns.Waiting.Len() > 0 && s.maintenance.Spec.WaitingNodes == v1alpha1.WaitingNodesSchedulable:
		s.setCondition(v1alpha1.NodeMaintenanceCordoned, false, v1alpha1.ReasonNotCordoned, "Nodes that wait because of maxParallelNodes stay schedulable")
	case cordonFailed != "":
		s.setCondition(v1alpha1.NodeMaintenanceCordoned, false, v1alpha1.ReasonCordonFailed, cordonFailed)
	default:
		s.setCondition(v1alpha1.NodeMaintenanceCordoned, true, v1alpha1.ReasonCordoned, "")
	}
}

func reportDrained(s *scope, cordonFailed string) {
	switch {
	case s.maintenance.Spec.Stage != v1alpha1.StageDrain:
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonNotDraining, "")
	case len(s.nodes) == 0:
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonNoNodesSelected, nodeselection.NoNodeMessage)
	case s.drain == nil:
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonPodsNotObserved, "Waiting for the first list of the Pods on the Nodes")
	case s.drain.decision.Drained && cordonFailed != "": // the next Pod may be about to start
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonCordonFailed, cordonFailed)
	case s.drain.decision.Drained:
		s.setCondition(v1alpha1.NodeMaintenanceDrained, true, v1alpha1.ReasonDrained, "")
	case len(s.drain.ruleProblems) > 0:
		problem := s.drain.ruleProblems[0]
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonInvalidDrainRule,
			text.Cut("Waiting for invalid drain rule "+problem.Rule+" to be fixed: "+problem.Message, text.MaxMessage))
	case len(s.nodes) > nodeselection.MaxNodes:
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonTooManyNodesSelected, nodeselection.TooManyMessage(len(s.nodes)))
	default:
		// The summary and the nodeStatuses name what the drain waits for. A condition that changed with every Pod would cause a
		// status patch with every Pod.
		s.setCondition(v1alpha1.NodeMaintenanceDrained, false, v1alpha1.ReasonDraining, "")
	}
}

func reportMachineDeleted(s *scope) {
	if !s.isMachineDeleted() || s.maintenance.Spec.Stage == v1alpha1.StageComplete {
		s.removeCondition(v1alpha1.NodeMaintenanceMachineDeleted)
		return
	}
	s.setCondition(v1alpha1.NodeMaintenanceMachineDeleted, true, v1alpha1.ReasonNodeExists,
		"Machine "+s.owner.key.String()+" was deleted, but its Node "+s.nodes[0].Name+" still exists and is not restored. To restore it, set stage Complete")
}

// reportPodsRemaining sets the condition PodsRemaining, which names the DaemonSets whose Pods stay on the Nodes although the drain rules
// say Drain (see package drain/daemonset), and those whose Pods the rules skip and the taint keeps from being recreated.
func reportPodsRemaining(s *scope) {
	var remaining, skipped []string
	if s.maintenance.Spec.Stage == v1alpha1.StageDrain {
		published := progress.Targets(&s.maintenance.Status)
		remaining = s.daemonSets(func(_ *corev1.Node, pod drainedPod) bool {
			return pod.Planned.IsRecreated && pod.verdict.Behavior == v1alpha1.DrainBehaviorDrain
		})
		skipped = s.daemonSets(func(node *corev1.Node, pod drainedPod) bool {
			return !pod.Planned.IsRecreated && pod.isSkipped() && len(plan.OfType(v1alpha1.PodTypeDaemonSet, published[node.Name])) > 0
		})
	}
	reason, messages := v1alpha1.ReasonDaemonSetToleratesMaintenance, []string{}
	if len(remaining) > 0 {
		messages = append(messages, "Pods of DaemonSets that tolerate the taint "+v1alpha1.NoDaemonSetPodsTaint+
			" are not evicted, because the DaemonSets would replace them immediately: "+text.List(remaining, maxDaemonSets))
	}
	if len(skipped) > 0 {
		messages = append(messages, "Pods of DaemonSets that the drain rules skip are not recreated before the end of the maintenance, "+
			"for example during a rollout: "+text.List(skipped, maxDaemonSets))
	}
	switch {
	case len(messages) == 0:
		s.removeCondition(v1alpha1.NodeMaintenancePodsRemaining)
		return
	case len(remaining) == 0:
		reason = v1alpha1.ReasonDaemonSetPodsNotRecreated
	}
	s.setCondition(v1alpha1.NodeMaintenancePodsRemaining, true, reason, text.Cut(strings.Join(messages, ". "), 2*text.MaxMessage))
}

// isSkipped reports whether all NodeMaintenances that drain the Node skip a Pod of a DaemonSet.
func (p drainedPod) isSkipped() bool {
	drains := func(v rules.Verdict) bool { return v.Behavior != v1alpha1.DrainBehaviorSkip }
	return p.Type == v1alpha1.PodTypeDaemonSet && !drains(p.verdict) && !slices.ContainsFunc(p.others, drains)
}

// daemonSets returns the sorted DaemonSets, as namespace/name, of those live Pods on the Nodes for which is returns true.
func (s *scope) daemonSets(is func(*corev1.Node, drainedPod) bool) []string {
	names := sets.New[string]()
	for _, node := range s.nodes {
		for _, pod := range s.drain.pods[node.Name] {
			if owner := metav1.GetControllerOfNoCopy(pod.object); owner != nil && !pod.Planned.Finished && is(node, pod) {
				names.Insert(pod.object.Namespace + "/" + owner.Name)
			}
		}
	}
	return sets.List(names)
}

// reportFinalAttempt records the drain timeout in the status. It sets the condition FinalEvictionAttempt once the final eviction attempt of
// every remaining Pod is due. The condition is true when all attempts have been made, and the Pods that terminate have had their grace
// periods. The hook of a Machine whose drain has timed out is not released before.
func reportFinalAttempt(s *scope) {
	status := draintimeout.Observe(s.maintenance, s.now)
	s.maintenance.Status.DrainTimeout = status
	if status == nil {
		s.removeCondition(v1alpha1.NodeMaintenanceFinalEvictionAttempt)
		return
	}
	attempt := s.drain.finalAttempt
	attempt.AllDue = attempt.AllDue && !s.drain.decision.Drained
	draintimeout.Record(status, attempt, s.now)
	switch {
	case !attempt.AllDue:
		s.removeCondition(v1alpha1.NodeMaintenanceFinalEvictionAttempt)
	case attempt.Missing > 0:
		s.setCondition(v1alpha1.NodeMaintenanceFinalEvictionAttempt, false, v1alpha1.ReasonAttemptingPods, "")
	case !attempt.Done():
		s.setCondition(v1alpha1.NodeMaintenanceFinalEvictionAttempt, false, v1alpha1.ReasonPodsTerminating,
			"Pods that were evicted or deleted have until "+attempt.TerminatingUntil.UTC().Format(time.RFC3339)+" to terminate")
	default:
		s.setCondition(v1alpha1.NodeMaintenanceFinalEvictionAttempt, true, v1alpha1.ReasonAllPodsAttempted, "")
	}
}
