package machine

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

const (
	// eventDrainRequested on a Machine means that the controller has created the NodeMaintenance that drains its Node.
	eventDrainRequested = "NodeDrainRequested"
	// eventMaintenanceNameTaken on a Machine means that a NodeMaintenance of another author has the name that this provider uses for the
	// Machine's Node.
	eventMaintenanceNameTaken = "NodeMaintenanceNameTaken"

	// createRetry is the delay before retrying to create a NodeMaintenance whose name exists in the API server but not in the cache. A
	// NodeMaintenance of another author triggers no event for the Machine.
	createRetry = time.Second
	// observeRetry is the interval of checks whether the cache contains an object that the API server has.
	observeRetry = time.Second
	// contactRetry is the interval at which a lost contact is checked. A successful probe triggers no event.
	contactRetry = 5 * time.Second
)

// awaitServed waits until the workload cluster serves the CRDs that the manager installs.
func (r *Reconciler) awaitServed(ctx context.Context, s *scope) (outcome, error) {
	unserved := r.Clusters.Unserved(s.clusterKey())
	if unserved == "" {
		return r.awaitLists(ctx, s), nil
	}
	return outcome{action: wait, blind: true, reason: v1alpha1.ReasonCRDNotServed, message: unserved, at: s.now.Add(unservedRetry)}, nil
}

// awaitLists waits while the first list of NodeMaintenances or Evacuations fails: a step that reads the cache would wait for the list.
func (r *Reconciler) awaitLists(ctx context.Context, s *scope) outcome {
	failure := r.Clusters.FirstListFailure(s.clusterKey())
	if failure.Err == nil || r.Clusters.HealthState(ctx, s.clusterKey()).ConsecutiveFailures > 0 { // checkContact reports the latter
		return outcome{}
	}
	waiting := outcome{action: wait, blind: true, at: failure.ReportAt()}
	if failure.Persists(s.now) {
		waiting.reason, waiting.message, waiting.at = v1alpha1.ReasonReconcileFailed, machinedrain.FailureMessage(failure.Err), s.now.Add(contactRetry)
	}
	return waiting
}

// unservedRetry is the interval of checks whether the CRDs are served.
const unservedRetry = time.Second

// requestMaintenance creates the NodeMaintenance of the Node, or updates it to the current policy and drain rules. It waits until the
// workload cluster is reachable and invalid MachineDrainRules are fixed.
func (r *Reconciler) requestMaintenance(ctx context.Context, s *scope) (_ outcome, err error) {
	if s.client, err = r.Clusters.Client(ctx, s.clusterKey()); err != nil {
		return r.unreachable(ctx, s, err)
	}
	if waiting, lost := r.checkContact(ctx, s); lost {
		return waiting, nil
	}
	if err := r.find(ctx, s); err != nil {
		return r.unreachable(ctx, s, err)
	}
	if err := s.continueUnadmitted(); err != nil {
		return outcome{}, err
	}
	if result, err := r.refuseFound(ctx, s); err != nil || result.action != proceed {
		return result, err
	}
	s.observe(s.found.Maintenance)
	if s.hasUnreadPolicy() { // a drain that has begun continues in the workload cluster; who waits for a turn under that policy is not known
		return s.held(), nil
	}
	if s.keepsSettings() {
		return s.awaitingPolicy(), nil
	}
	if err := r.observeTurn(ctx, s); err != nil {
		return r.unreachable(ctx, s, err)
	}
	if result, err := r.resume(ctx, s); err != nil || result.action != proceed {
		return result, err
	}
	desired, problem, err := r.desired(ctx, s, machinedrain.DaemonSetPods(s.policy, s.maintenance))
	if err != nil {
		return outcome{}, err
	}
	if m := s.maintenance; machinedrain.MustRecreate(m, desired) {
		message := "NodeMaintenance " + m.Name + " announced another drain plan; recreating it"
		return outcome{action: wait, blind: true, reason: v1alpha1.ReasonMachineDraining, message: message},
			machinemaintenance.CompleteAndDelete(ctx, s.client, m, r.Maintenances.ManagementCluster)
	}
	if problem != nil {
		return r.keepRules(ctx, s, desired, problem)
	}
	return r.applyConfirmed(ctx, s, desired)
}

// applyConfirmed is apply, with confirmSettings before a drain begins or a suspended one continues. A drain in place that has completed or
// timed out keeps its result meanwhile: the condition may be the only record of that, see machinedrain.WasDrained.
func (r *Reconciler) applyConfirmed(ctx context.Context, s *scope, desired *v1alpha1.NodeMaintenance) (outcome, error) {
	hasBegun := s.maintenance != nil && s.maintenance.Spec.Stage == v1alpha1.StageDrain
	begins := !hasBegun && desired.Spec.Stage == v1alpha1.StageDrain
	if begins || hasBegun && !r.Maintenances.Continues(s.machine) {
		if waiting := r.confirmSettings(ctx, s); waiting.action == wait {
			if !begins && !machinedrain.MayDrain(s.machine) {
				waiting.reason, waiting.message = "", ""
			}
			return waiting, nil
		}
	}
	if !begins {
		return r.apply(ctx, s, desired)
	}
	r.Maintenances.Continue(s.machine, s.now) // before the watch delivers what apply writes
	result, err := r.apply(ctx, s, desired)
	if err != nil || result.action == wait { // the API server may have a NodeMaintenance that the cache does not have
		r.Maintenances.Suspend(client.ObjectKeyFromObject(s.machine), s.now)
	}
	return result, err
}

// find finds the Node and the NodeMaintenance of the Machine. If the Machine would be released because of its Node, the API server decides:
// the watch may not have delivered the Node yet, or may not have delivered that it is reachable again. It also decides whether a drain that
// was held had begun.
func (r *Reconciler) find(ctx context.Context, s *scope) (err error) {
	s.found, s.node, err = machinemaintenance.Find(ctx, s.client, s.clusterKey(), s.machine)
	mayHaveBegun := machinedrain.WasHeldByHooks(s.machine) && s.found.Maintenance == nil
	if err != nil || machinedrain.SkipNode(s.node) == machinedrain.NotSkipped && !mayHaveBegun {
		return err
	}
	live, err := r.Clusters.UncachedClient(ctx, s.clusterKey())
	if err != nil {
		return err
	}
	s.found, s.node, err = machinemaintenance.Find(ctx, live, s.clusterKey(), s.machine)
	return err
}

// refuseFound returns why the Node and the NodeMaintenance that were found permit no drain now, and proceeds otherwise. It first ends the
// drain in place of a Node that was replaced, see machinedrain.EndFormerDrain.
func (r *Reconciler) refuseFound(ctx context.Context, s *scope) (outcome, error) {
	if s.found.Maintenance == nil && s.node != nil {
		end := machinedrain.EndFormerDrain(s.node, s.now)
		if err := r.patchMachine(ctx, s, "removing the records of the drain of a Node that was replaced", end); err != nil {
			return outcome{}, err
		}
	}
	isRunning, skip := s.machine.DeletionTimestamp.IsZero(), machinedrain.SkipNode(s.node)
	switch m := s.found.Maintenance; {
	case s.node == nil && isRunning:
		return outcome{action: wait, reason: v1alpha1.ReasonMachineCordoning, message: "Waiting for the Node of the Machine", at: s.now.Add(pollInterval)}, nil
	case skip != machinedrain.NotSkipped && !isRunning:
		return s.skip(skip), nil
	case s.found.Name == "":
		return outcome{action: wait, blind: true, reason: v1alpha1.ReasonNodeMaintenanceNameTaken, message: s.found.TakenMessage()}, nil
	case m != nil && m.Spec.Stage == v1alpha1.StageComplete: // stages only move forward
		return outcome{
				action: wait, blind: true, reason: v1alpha1.ReasonMachineDraining, message: "NodeMaintenance " + m.Name + " was completed by another actor; recreating it",
			},
			machinemaintenance.CompleteAndDelete(ctx, s.client, m, r.Maintenances.ManagementCluster)
	}
	return outcome{}, nil
}

// keepRules continues a running drain with the last valid rules while a MachineDrainRule is invalid: timeouts and other settings still
// follow edits. A drain that has ended under these rules holds nothing, unless Pods that they skip may have to be drained: because of an
// edit of a valid rule, or of the invalid one. awaitDrained decides whether the end is confirmed. Another drain waits until the rule is
// fixed.
func (r *Reconciler) keepRules(ctx context.Context, s *scope, desired *v1alpha1.NodeMaintenance, problem *machinemaintenance.Problem) (outcome, error) {
	waiting, clock := outcome{action: wait, reason: problem.Reason, message: problem.Message}, s.clock()
	hasBegun := clock.Drain != nil || clock.Drained != nil
	if hasBegun && s.maintenance != nil && s.maintenance.Spec.Stage == v1alpha1.StageDrain {
		present, valid := s.maintenance.Spec.DrainRules, desired.Spec.DrainRules
		desired.Spec.DrainRules = present
		if result, err := r.applyConfirmed(ctx, s, desired); err != nil || result.action == wait {
			return result, err
		}
		clock = s.clock()
		hasEnded := clock.Drained != nil || r.drainState(s) != machinedrain.DrainInProgress
		if hasEnded && rules.StaySkipped(present, valid, problem.FirstInvalid) {
			return outcome{}, nil
		}
	}
	if s.maintenance != nil {
		s.IsResumed = s.IsResumed || clock.Drained != nil
	}
	if s.maintenance == nil || s.clock().Drain == nil {
		waiting.blind = true
		return waiting, nil
	}
	return r.untilDrainDeadline(s, waiting), nil
}

// desired returns the NodeMaintenance that drains the Machine's Node.
func (r *Reconciler) desired(ctx context.Context, s *scope,
	daemonSetPods v1alpha1.DaemonSetPodsPolicy,
) (*v1alpha1.NodeMaintenance, *machinemaintenance.Problem, error) {
	purpose := v1alpha1.RequestedForDeletion
	if s.machine.DeletionTimestamp.IsZero() {
		purpose = v1alpha1.RequestedForStage
	}
	desired, problem, err := r.Maintenances.Desired(ctx, machinemaintenance.Request{
		Cluster: s.cluster, Machine: s.machine, Policy: s.policy, Stage: stageAt(*s.Turn), For: purpose, DaemonSetPods: daemonSetPods,
		Schedulable: s.keepsSchedulable(),
	}, s.found, s.node)
	switch {
	case problem != nil: // what is gone was last looked at before
		r.memoryOf(s.machine).rulesGone = time.Time{}
	case err == nil:
		r.awaitReplacement(ctx, s, desired)
	}
	return desired, problem, err
}

// awaitReplacement keeps the rules of a drain in progress for a moment if one of them is gone, and until the API server confirms that. The
// time at which it was found to be gone is kept in memory: a restart makes the moment longer.
func (r *Reconciler) awaitReplacement(ctx context.Context, s *scope, desired *v1alpha1.NodeMaintenance) {
	remembered, present := r.memoryOf(s.machine), s.maintenance
	if present == nil || present.Spec.Stage != v1alpha1.StageDrain || !rules.IsAnyGone(present.Spec.DrainRules, desired.Spec.DrainRules) {
		remembered.rulesGone = time.Time{}
		return
	}
	remembered.rulesGone = cmp.Or(remembered.rulesGone, s.now)
	until := rules.AwaitReplacement(present.Spec.DrainRules, desired.Spec.DrainRules, remembered.rulesGone, s.now)
	if until.IsZero() && !r.confirmGone(ctx, s, remembered.rulesGone) {
		until = s.now.Add(s.askAgain())
	}
	if !until.IsZero() {
		desired.Spec.DrainRules = present.Spec.DrainRules
		r.retryAfter(client.ObjectKeyFromObject(s.machine), until.Sub(s.now))
	}
}

// apply creates the NodeMaintenance, or updates it to the desired state.
func (r *Reconciler) apply(ctx context.Context, s *scope, desired *v1alpha1.NodeMaintenance) (outcome, error) {
	if s.Turn.Overdue { // no other Machine may take the turn while the update takes long
		if err := r.recordClock(ctx, s); err != nil {
			return outcome{}, err
		}
	}
	present, usesTurn := s.maintenance, s.clock().UsesTurn(s.maintenance, desired)
	if usesTurn { // the drain has the whole drain timeout from now
		delete(desired.Annotations, v1alpha1.DrainStartedAnnotation)
	}
	applied, err := machinemaintenance.Apply(ctx, s.client, present, desired)
	if answers.AlreadyExists(err) || answers.DoesNotExist(err) { // the cache is stale, or another author has just created it
		return outcome{
			action: wait, blind: true, reason: v1alpha1.ReasonMachineDraining, message: "Waiting for NodeMaintenance " + desired.Name + " to be observed",
			at: s.now.Add(createRetry),
		}, nil
	}
	if err != nil {
		return r.unreachable(ctx, s, err)
	}
	if present == applied && r.memoryOf(s.machine).rulesGone.IsZero() { // otherwise, it has none of the new rules yet, see awaitReplacement
		r.continueDrain(s)
	}
	if present == nil || present.Generation != applied.Generation {
		r.endBlock(s)
	}
	s.observe(applied)
	s.IsResumed = s.IsResumed || usesTurn
	if present == nil {
		ctrl.LoggerFrom(ctx).Info("Created NodeMaintenance to drain the Node", "Node", klog.KObj(s.node), "NodeMaintenance", klog.KObj(applied))
		r.events.Eventf(s.machine, corev1.EventTypeNormal, eventDrainRequested, "Requested the drain of Node %s by NodeMaintenance %s", s.node.Name, applied.Name)
		if taken := s.found.TakenMessage(); taken != "" {
			r.events.Event(s.machine, corev1.EventTypeWarning, eventMaintenanceNameTaken, taken)
		}
	}
	return outcome{}, nil
}

// awaitDrained waits until the Node is drained or the drain times out.
func (r *Reconciler) awaitDrained(ctx context.Context, s *scope) (outcome, error) {
	observeDrain(s)
	if s.drainOver {
		return outcome{}, nil
	}
	failure := r.maintenanceFailure(ctx, s)
	switch state := r.drainState(s); {
	case state == machinedrain.DrainComplete:
		s.drainOver, s.IsDrained = true, true
		return outcome{}, nil
	case state == machinedrain.DrainUnconfirmed && r.mayBeConfirmed(s, failure):
		return awaitConfirmation(s), nil
	}
	s.IsResumed = s.IsResumed || s.clock().Drained != nil
	reason, message := machinedrain.DrainProgress(s.maintenance, failure)
	if s.goneProblem != nil {
		message += "\n" + machinedrain.GoneRuleMessage(s.goneProblem)
	}
	waiting := outcome{action: wait, reason: reason, message: message}
	if s.clock().Drain == nil { // the NodeMaintenance has not been reconciled yet
		waiting.blind = true
		return waiting, nil
	}
	return r.untilDrainDeadline(s, waiting), nil
}

// drainState returns what is known about the end of the drain. It does not end while a MachineDrainRule that is gone still applies: it may
// never have existed in this management cluster, and then the Pods that it skips must be drained.
func (r *Reconciler) drainState(s *scope) machinedrain.DrainState {
	isAnyGone := !r.memoryOf(s.machine).rulesGone.IsZero()
	hadEnded := s.clock().Drained != nil || machinedrain.WasDrained(s.machine)
	return machinedrain.DrainStateOf(s.maintenance, hadEnded, !isAnyGone && r.Clusters.IsConfirmed(s.maintenanceRequest(), s.maintenance))
}

const (
	// confirmTimeout is how long a Machine waits for the NodeMaintenance of a drain that had ended to be reconciled by this process under its
	// present spec. Then the deadlines count again.
	confirmTimeout = time.Minute
	// confirmRetry is how often the Machine is reconciled meanwhile, if no event triggers it.
	confirmRetry = 5 * time.Second
)

// mayBeConfirmed returns whether the NodeMaintenance of a drain that had ended may soon be reconciled. It remembers since when the Machine
// waits for that.
func (r *Reconciler) mayBeConfirmed(s *scope, failure error) bool {
	s.blind = true
	since := cmp.Or(s.before.unconfirmed, s.now)
	r.memoryOf(s.machine).unconfirmed = since
	return failure == nil && s.now.Sub(since) < confirmTimeout
}

// awaitConfirmation waits for the reconciliation of the NodeMaintenance without changing the condition of the Machine.
func awaitConfirmation(s *scope) outcome {
	return outcome{action: wait, at: s.now.Add(confirmRetry)}
}

// maintenanceFailure returns the persistent error of the reconciliation of the Machine's NodeMaintenance or of its watches, or nil. It
// returns nil if the API server does not answer: checkContact reports that.
func (r *Reconciler) maintenanceFailure(ctx context.Context, s *scope) error {
	if r.Clusters.HealthState(ctx, s.clusterKey()).ConsecutiveFailures > 0 {
		return nil
	}
	request := workload.Request{Cluster: s.clusterKey(), Object: client.ObjectKeyFromObject(s.maintenance)}
	if failure := r.Clusters.Failures.Get(request); failure.Persists(s.now) {
		return failure.Err
	}
	return r.Clusters.WatchFailure(s.clusterKey(), s.node.Name)
}

// awaitDaemonSets drains the Pods of DaemonSets as the last step, if the policy requires it. It lifts the drain rule that skips them, and
// the drain timeout starts again; awaitDrained then waits for them to terminate. They stay after a timeout, and on the unreachable Node of
// a deleted Machine, whose volumes were not waited for: among them are the node plugins of CSI drivers, without which no volume detaches.
// While a MachineDrainRule is invalid, the last valid rules decide about them, as in keepRules.
func (r *Reconciler) awaitDaemonSets(ctx context.Context, s *scope) (outcome, error) {
	stay := len(s.timedOut) > 0 || !s.machine.DeletionTimestamp.IsZero() && rules.Unreachable(s.node)
	if !machinedrain.DrainsDaemonSets(s.policy) || machinedrain.DaemonSetRuleLifted(s.maintenance) || stay {
		return outcome{}, nil
	}
	course := s.course() // with the wait for volumes, which ends now
	s.IsDrained, s.VolumeWaitStart, s.Restarts = false, nil, machinedrain.RestartsForDaemonSets(s.machine, s.maintenance)
	if err := r.patchMachine(ctx, s, "ending the wait for volumes", s.clock().Record); err != nil {
		return outcome{}, err
	}
	desired, problem, err := r.desired(ctx, s, v1alpha1.DaemonSetPodsDrain)
	if err != nil {
		return outcome{}, err
	}
	if problem != nil {
		desired.Spec.DrainRules = machinedrain.LiftDaemonSetRule(s.maintenance.Spec.DrainRules)
	}
	if result, err := r.apply(ctx, s, desired); err != nil || result.action == wait {
		return result, err
	}
	ctrl.LoggerFrom(ctx).Info("All other Pods are drained and the volumes detached, draining the Pods of DaemonSets")
	if !s.machine.DeletionTimestamp.IsZero() {
		r.Recorder.BeginDaemonSets(s.maintenanceRequest(), s.trace(), course, s.now)
	}
	waiting := outcome{action: wait, reason: v1alpha1.ReasonMachineDraining, message: "Draining the Pods of DaemonSets, after all other Pods and the volumes"}
	return s.requeueBy(s.clock().DrainDeadline(s.machine), waiting), nil
}

// confirmPods waits until the Node in the API server is cordoned, and until each Pod that the API server lists there was observed when the
// NodeMaintenance was found to be drained. The watches may lag: without this, the Machine of a Pod that was scheduled just before the Node
// was cordoned would be released. Pods that counted as gone because the Node was unreachable may run, so it also waits until the
// NodeMaintenance was found to be drained since the Node is reachable again. A timeout of the wait for volumes does not end the drain, and
// no deadline ends this step.
func (r *Reconciler) confirmPods(ctx context.Context, s *scope) (outcome, error) {
	if s.drainTimeoutMessage != "" {
		return outcome{}, nil
	}
	s.confirming = true
	node, waiting, err := r.readNode(ctx, s)
	if err != nil || waiting.action == wait {
		return waiting, err
	}
	observed, unreachable := r.Clusters.ConfirmedPods(s.maintenanceRequest(), s.maintenance)
	switch {
	case !node.Spec.Unschedulable:
		return waitForNode(s, "cordoned"), nil
	case unreachable && !rules.Unreachable(node):
		return waitForNode(s, "observed as reachable"), nil
	}
	live, err := r.Clusters.UncachedClient(ctx, s.clusterKey())
	if err != nil {
		return r.unreachable(ctx, s, err)
	}
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := live.List(ctx, pods, client.MatchingFields{"spec.nodeName": s.node.Name}); err != nil {
		return r.unreachable(ctx, s, err)
	}
	message := machinedrain.UnobservedPodsMessage(pods.Items, observed)
	if message == "" {
		return outcome{}, nil
	}
	return outcome{action: wait, reason: v1alpha1.ReasonMachineDraining, message: message, at: s.now.Add(observeRetry)}, nil
}
