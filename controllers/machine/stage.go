package machine

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// eventInvalidStage on a Machine means that its stage annotation has an invalid value.
const eventInvalidStage = "InvalidStage"

// reconcileStage moves the maintenance of a running Machine's Node to the stage that the Machine's annotation or an in-place update
// requests, or ends the maintenance:
//
//	Idle, Cordon:    disable remediation (Cordon) ─► create or update the NodeMaintenance ─► allow the update ─► report
//	Drain:           disable remediation ─► the steps of a drain, as for a deleted Machine ─► allow the update ─► report
//	none, Complete:  withdraw the permission of the update ─► complete and delete the NodeMaintenance ─► enable remediation ─► report
//
// It also ends a drain that another management cluster or a former deletion has left behind on the Node, also if no policy selects the
// Machine.
func (r *Reconciler) reconcileStage(ctx context.Context, s *scope) (reconcile.Result, error) {
	if !s.mayHaveStage() {
		return reconcile.Result{}, nil
	}
	stage, problem := machinedrain.RequestedStage(s.machine, s.policy)
	err := r.findMaintenance(ctx, s, stage)
	stage = machinedrain.ContinuedStage(s.machine, stage, s.maintenance)
	wanted := stage
	if s.policy == nil && !s.awaitsPolicy() { // the stage annotation has no effect
		wanted = ""
	}
	stays, again := r.staysAsIs(s, stage)
	var condition metav1.Condition
	switch {
	case s.maintenance != nil && machinedrain.IsOrphaned(s.maintenance, s.machine, wanted, r.Maintenances.ManagementCluster):
		return r.endOrphaned(ctx, s)
	case stays:
		return r.keepAsIs(ctx, s, again, err)
	case problem != "":
		condition, err = waitingCondition(v1alpha1.ReasonInvalidStage, problem), nil
	case stage == v1alpha1.StageDrain && s.policy != nil:
		return r.drainInPlace(ctx, s)
	default:
		condition, err = r.applyStage(ctx, s, stage, err)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	r.warnOfInvalidStage(s, condition)
	if retry, err := r.allowUpdate(ctx, s, condition.Reason); err != nil || retry > 0 {
		return reconcile.Result{RequeueAfter: retry}, err
	}
	return reconcile.Result{RequeueAfter: s.pollStage(condition.Reason)}, r.setCondition(ctx, s, condition)
}

// continueInDeletedCluster continues the suspended drain in place of a Machine whose Cluster is being deleted, unless nothing requests the
// drain any more. The NodeMaintenance gets the settings and drain rules that the Machine has then, and does not change any more until the
// Machine is deleted. The condition of the Machine stays as it is, unless the drain does not continue because its policy cannot be decoded
// or a request fails: it says so then, and is removed when the drain has continued.
func (r *Reconciler) continueInDeletedCluster(ctx context.Context, s *scope) (result reconcile.Result, err error) {
	if !machinedrain.MayBeMaintained(s.machine) {
		return reconcile.Result{}, nil
	}
	if !r.Maintenances.Continues(s.machine) {
		result, err = r.continueIfRequested(ctx, s)
	}
	reason := conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance)
	isReported := reason == v1alpha1.ReasonPolicyNotDecodable || reason == v1alpha1.ReasonReconcileFailed
	if err == nil && isReported && r.Maintenances.Continues(s.machine) {
		observeUnended(s, v1alpha1.ReasonMachineDraining)
		err = r.setCondition(ctx, s, metav1.Condition{})
	}
	return result, err
}

// continueIfRequested is continueInDeletedCluster for a drain that is suspended.
func (r *Reconciler) continueIfRequested(ctx context.Context, s *scope) (reconcile.Result, error) {
	if err := r.findMaintenance(ctx, s, ""); err != nil || s.maintenance == nil || !s.maintenance.Drains() {
		return reconcile.Result{}, err
	}
	requested, _ := machinedrain.RequestedStage(s.machine, s.policy)
	stage := machinedrain.ContinuedStage(s.machine, requested, s.maintenance)
	switch {
	case s.hasUnreadPolicy():
		return r.holdRunning(ctx, s)
	case stage == v1alpha1.StageDrain && s.policy != nil:
		waiting, err := r.requestMaintenance(ctx, s)
		return workload.RequeueAt(waiting.at, s.now), err
	case stage == v1alpha1.StageDrain || machinedrain.UpdateContinues(s.machine):
		r.continueDrain(s)
	}
	return reconcile.Result{}, nil
}

// staysAsIs reports whether neither the maintenance of a running Machine nor its condition changes, and after how long the Machine is
// reconciled again: an update in place continues without a policy that requires a stage, or the policy may be replaced.
func (r *Reconciler) staysAsIs(s *scope, stage v1alpha1.NodeMaintenanceStage) (stays bool, again time.Duration) {
	held := r.heldUpdate(s, stage)
	awaits := !s.policySettles.IsZero() && (stage != v1alpha1.StageDrain || s.keepsSettings())
	switch {
	case stage == "" && machinedrain.UpdateContinues(s.machine):
		return true, max(0, s.policySettles.Sub(s.now))
	case stage != "" && stage != v1alpha1.StageComplete && awaits:
		return true, s.policySettles.Sub(s.now)
	default:
		return held > 0, held
	}
}

// keepAsIs is what follows if staysAsIs is true. An update in place that nothing ends does not change the NodeMaintenance any more. findErr
// is the error of findMaintenance: the drain stays suspended then.
func (r *Reconciler) keepAsIs(ctx context.Context, s *scope, again time.Duration, findErr error) (reconcile.Result, error) {
	if again == 0 {
		if findErr != nil && !workload.IsNotConnected(findErr) {
			return reconcile.Result{}, findErr
		}
		r.continueDrain(s)
	}
	return reconcile.Result{RequeueAfter: again}, r.reportUnconfirmed(ctx, s)
}

// heldUpdate returns for how long the maintenance of a Node before an update in place stays as it is although nothing requires it any more:
// the policy that requires it may be replaced. It stays at least until the policy of the Machine has settled, see awaitPolicy.
func (r *Reconciler) heldUpdate(s *scope, stage v1alpha1.NodeMaintenanceStage) time.Duration {
	since := &r.memoryOf(s.machine).unrequired
	if stage != "" || !machinedrain.IsBeforeUpdate(s.machine, s.maintenance) {
		*since = time.Time{}
		return 0
	}
	*since = cmp.Or(*since, s.now)
	until := since.Add(rules.GoneCounts)
	if s.policySettles.After(until) {
		until = s.policySettles
	}
	return max(0, until.Sub(s.now))
}

// endOrphaned completes a NodeMaintenance that serves a deletion which is not this Machine's. It asks the API server: the watch of Machines
// may lag behind the deletion.
func (r *Reconciler) endOrphaned(ctx context.Context, s *scope) (reconcile.Result, error) {
	live, err := r.liveMachine(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	if live == nil || !live.DeletionTimestamp.IsZero() {
		return reconcile.Result{RequeueAfter: observeRetry}, nil
	}
	ctrl.LoggerFrom(ctx).Info("Completing the NodeMaintenance of a Machine that is not being deleted any more, after clusterctl move or a restore",
		"NodeMaintenance", klog.KObj(s.maintenance))
	return reconcile.Result{}, r.completeMaintenance(ctx, s)
}

// pollStage returns after how long a maintenance without deletion is reconciled again, if no event triggers it. Neither the creation of a
// Node nor the deletion of another author's NodeMaintenance triggers one.
func (s *scope) pollStage(reason string) time.Duration {
	if s.node == nil && reason == v1alpha1.ReasonMachineCordoning || reason == v1alpha1.ReasonNodeMaintenanceNameTaken {
		return pollInterval
	}
	return 0
}

// mayHaveStage reports whether a maintenance of the Machine may have been requested, or may exist.
func (s *scope) mayHaveStage() bool {
	_, requested := s.machine.Annotations[v1alpha1.MachineStageAnnotation]
	return requested || s.policy != nil || s.isWatched || conditions.Has(s.machine, v1alpha1.MachineNodeMaintenance) ||
		machinedrain.MayHaveMaintenance(s.machine)
}

// allowUpdate tells the updater that an in-place update may begin, if the reason of the Machine's condition permits it, and withdraws that
// when the update is over. The NodeMaintenance may come from a stale cache and be that of an earlier update, which the manager has
// completed since: allowUpdate compares it with the API server, and returns when to try again if it must be observed first.
func (r *Reconciler) allowUpdate(ctx context.Context, s *scope, reason string) (retry time.Duration, _ error) {
	change := machinedrain.AllowUpdate(s.policy, reason)
	if !change(s.machine.DeepCopy()) {
		return 0, nil
	}
	if s.maintenance != nil && machinedrain.InPlaceStage(s.machine, s.policy) != "" {
		live, err := r.Clusters.UncachedClient(ctx, s.clusterKey())
		if err != nil {
			return 0, err
		}
		stored := &v1alpha1.NodeMaintenance{}
		found, err := readOne(ctx, live, client.ObjectKeyFromObject(s.maintenance), stored)
		if err != nil {
			return 0, err
		}
		if !found || !machinedrain.IsUnchanged(stored, s.maintenance) {
			return createRetry, nil
		}
	}
	return 0, r.patchMachine(ctx, s, "setting annotation "+v1alpha1.UpdateAllowedAnnotation, change)
}

// warnOfInvalidStage writes an event if a condition says for the first time that the stage is invalid.
func (r *Reconciler) warnOfInvalidStage(s *scope, condition metav1.Condition) {
	if condition.Reason == v1alpha1.ReasonInvalidStage && conditions.GetMessage(s.machine, v1alpha1.MachineNodeMaintenance) != condition.Message {
		r.events.Event(s.machine, corev1.EventTypeWarning, eventInvalidStage, condition.Message)
	}
}

// findMaintenance finds the Node and the NodeMaintenance of a Machine. Without a stage, it reads the Node only if the NodeMaintenance
// exists.
func (r *Reconciler) findMaintenance(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage) (err error) {
	find := machinemaintenance.Find
	if stage == "" {
		find = machinemaintenance.FindExisting
	}
	if s.client, err = r.Clusters.Client(ctx, s.clusterKey()); err != nil {
		return err
	}
	if s.found, s.node, err = find(ctx, s.client, s.clusterKey(), s.machine); err == nil {
		s.observe(s.found.Maintenance)
	}
	return err
}

// applyStage takes the next step of a stage other than Drain, and returns the resulting condition of the Machine. The zero condition means
// that the Machine must have none. findErr is the error of findMaintenance. If there is no error, applyStage deletes the state about a
// drain that was withdrawn before it ended, unless a policy may select the Machine again in a moment.
func (r *Reconciler) applyStage(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage, findErr error) (metav1.Condition, error) {
	condition, err := r.advanceStage(ctx, s, stage, findErr)
	if err == nil && !s.awaitsPolicy() {
		r.forget(client.ObjectKeyFromObject(s.machine))
	}
	return condition, err
}

func (r *Reconciler) advanceStage(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage, findErr error) (metav1.Condition, error) {
	switch {
	case workload.IsNotConnected(findErr) && stage == "":
		return r.unchanged(s), nil
	case workload.IsNotConnected(findErr):
		return waitingCondition(v1alpha1.ReasonWaitingForWorkloadCluster, machinedrain.WaitingForConnection), nil
	case findErr != nil:
		return metav1.Condition{}, findErr
	case stage == "" || stage == v1alpha1.StageComplete:
		return r.endStage(ctx, s, stage)
	case s.policy == nil:
		r.continueDrain(s)
		return waitingCondition(v1alpha1.ReasonNotManaged, machinedrain.UnmanagedMessage(s.maintenance)), nil
	default:
		return r.keepStage(ctx, s, stage)
	}
}

// drainInPlace drains the Node of a Machine that is not being deleted. When the condition has the reason Drained, the Pods have terminated
// and the volumes are detached.
func (r *Reconciler) drainInPlace(ctx context.Context, s *scope) (reconcile.Result, error) {
	request := r.requestDrain(s)
	switch err := r.patchRemediation(ctx, s, request); {
	case errors.Is(err, errRestored): // the drain continues
		s.machine = s.machine.DeepCopy()
		request(s.machine)
	case err != nil:
		return reconcile.Result{}, err
	}
	return r.runSteps(ctx, s, r.awaitServed, r.requestMaintenance, r.skipIfDrained, r.awaitTurn, r.awaitDrained, r.awaitVolumesDetached, r.awaitDaemonSets,
		r.confirmPods)
}

// drainRequest is when the drain in place of a Machine was requested.
type drainRequest struct {
	uid types.UID
	at  time.Time
}

// requestDrain returns the change that records on a Machine when its drain was requested. The time is kept in memory until the drain ends
// or is withdrawn: another actor may restore the annotation each time, and the Machine must keep its place among those that wait for turns.
func (r *Reconciler) requestDrain(s *scope) func(*clusterv1.Machine) (changed bool) {
	key, request := client.ObjectKeyFromObject(s.machine), drainRequest{uid: s.machine.UID, at: s.now}
	if recorded := machinedrain.RequestedAt(s.machine); recorded != nil {
		request.at = *recorded
	} else if before, found := r.requested.Load(key); found && before.(drainRequest).uid == request.uid { //nolint:forcetypeassert // nothing else is stored
		request = before.(drainRequest) //nolint:forcetypeassert // nothing else is stored
	}
	r.requested.Store(key, request)
	return machinedrain.RequestDrain(request.at)
}

// withRequest returns a running Machine of the cache with the request for its drain in place, which another actor may have replaced.
func (r *Reconciler) withRequest(m *clusterv1.Machine) *clusterv1.Machine {
	request, found := r.requested.Load(client.ObjectKeyFromObject(m))
	if !found || request.(drainRequest).uid != m.UID || machinedrain.RequestedAt(m) != nil { //nolint:forcetypeassert // nothing else is stored
		return m
	}
	m = m.DeepCopy()
	machinedrain.RequestDrain(request.(drainRequest).at)(m) //nolint:forcetypeassert // nothing else is stored
	return m
}

// skipIfDrained ends the steps of a Machine whose Node has been drained before, unless Pods must be drained again.
func (r *Reconciler) skipIfDrained(ctx context.Context, s *scope) (outcome, error) {
	switch state := r.drainState(s); {
	case !machinedrain.WasDrained(s.machine):
		return outcome{}, nil
	case state == machinedrain.DrainComplete:
		isReported := conditions.IsTrue(s.machine, v1alpha1.MachineNodeMaintenance)
		if !isReported || machinedrain.AllowUpdate(s.policy, v1alpha1.ReasonMachineDrained)(s.machine.DeepCopy()) {
			if waiting, err := r.confirmPods(ctx, s); err != nil || waiting.action == wait {
				return waiting, err
			}
		}
		return s.result(), nil
	case state == machinedrain.DrainUnconfirmed && r.mayBeConfirmed(s, r.maintenanceFailure(ctx, s)):
		return awaitConfirmation(s), nil
	default:
		return outcome{}, nil
	}
}

// keepDrained reports the result of the drain of a Machine that is not being deleted. The Node stays cordoned until the stage annotation is
// removed or the in-place update has completed. After a timeout, the steps run again until the Node is drained.
func (r *Reconciler) keepDrained(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	if !s.blind { // an update must not begin on a Node whose drain cannot be observed
		if retry, err := r.allowUpdate(ctx, s, result.reason); err != nil || retry > 0 {
			return reconcile.Result{RequeueAfter: retry}, err
		}
	}
	wanted, again := machinedrain.ResultCondition(result.reason, result.message), time.Duration(0)
	if wanted.Reason == v1alpha1.ReasonMachineDrained {
		if err := r.patchMachine(ctx, s, "recording the end of the drain", machinedrain.RecordDrained(s.now)); err != nil {
			return reconcile.Result{}, err
		}
	}
	if wanted.Status == metav1.ConditionTrue {
		r.forget(client.ObjectKeyFromObject(s.machine))
	} else {
		again = pollInterval
	}
	return reconcile.Result{RequeueAfter: again}, r.setCondition(ctx, s, wanted)
}

// keepStage creates or updates the NodeMaintenance in the requested stage, Idle or Cordon.
func (r *Reconciler) keepStage(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage) (metav1.Condition, error) {
	switch {
	case s.maintenance != nil && s.maintenance.Spec.Stage == v1alpha1.StageComplete: // stages only move forward, so it is deleted and recreated
		return machinedrain.StageCondition(stage, nil), r.completeMaintenance(ctx, s)
	case s.maintenance != nil && machinedrain.StageBefore(stage, s.maintenance.Spec.Stage):
		return machinedrain.StageCondition(stage, s.maintenance), nil
	}
	change := machinedrain.SetRemediation
	if stage == v1alpha1.StageIdle {
		change = machinedrain.EnableRemediation
	}
	if err := r.patchRemediation(ctx, s, change); err != nil {
		return metav1.Condition{}, err
	}
	kept, problem, err := r.Maintenances.Ensure(ctx, s.client, machinemaintenance.Request{
		Cluster: s.cluster, Machine: s.machine, Policy: s.policy, Stage: stage, For: v1alpha1.RequestedForStage,
	})
	if err != nil {
		return metav1.Condition{}, err
	}
	if problem != nil {
		return waitingCondition(problem.Reason, problem.Message), nil
	}
	s.observe(kept)
	condition := machinedrain.StageCondition(stage, kept)
	if taken := s.found.TakenMessage(); taken != "" {
		condition.Message += "\n" + taken
	}
	return condition, nil
}

// endStage completes the maintenance, and then enables remediation of the Machine. It completes a NodeMaintenance that a rollout has
// requested only if the annotation requests Complete, or if the Machine belongs to no MachineDeployment any more.
func (r *Reconciler) endStage(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage) (metav1.Condition, error) {
	if s.maintenance != nil && (stage == v1alpha1.StageComplete || s.hasLostPurpose()) {
		return machinedrain.StageCondition(v1alpha1.StageComplete, s.maintenance), r.endMaintenance(ctx, s)
	}
	if err := r.patchRemediation(ctx, s, machinedrain.EndMaintenance); err != nil || stage == "" {
		return metav1.Condition{}, err
	}
	return machinedrain.StageCondition(v1alpha1.StageComplete, nil), nil
}

// hasLostPurpose reports whether nothing requests the NodeMaintenance of a running Machine without a stage.
func (s *scope) hasLostPurpose() bool {
	switch s.maintenance.Annotations[v1alpha1.RequestedForAnnotation] {
	case v1alpha1.RequestedForStage:
		return true
	case v1alpha1.RequestedForRollout: // the rollout controller knows only the Machines of MachineDeployments
		return s.machine.Labels[clusterv1.MachineDeploymentNameLabel] == ""
	default:
		return false
	}
}

// withdraw removes what the drain of a Machine has set on it before its Node is restored: the next in-place update must find neither the
// permission of this one nor its clock. The patch is sent even if it changes nothing, and fails with a conflict if the Machine has
// changed: another update may have begun.
func (r *Reconciler) withdraw(ctx context.Context, s *scope) error {
	if !s.maintenance.DeletionTimestamp.IsZero() {
		return nil
	}
	changed := s.machine.DeepCopy()
	machinedrain.EndDrain(changed)
	r.requested.Delete(client.ObjectKeyFromObject(changed)) // the patch wakes those that wait for turns
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{})); err != nil {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "withdrawing the drain of Machine %s", klog.KObj(s.machine))
	}
	s.machine = changed
	return nil
}

// endMaintenance withdraws what the drain of a Machine has set on it, and completes the NodeMaintenance.
func (r *Reconciler) endMaintenance(ctx context.Context, s *scope) error {
	if err := r.withdraw(ctx, s); err != nil {
		return err
	}
	return r.completeMaintenance(ctx, s)
}

func (r *Reconciler) completeMaintenance(ctx context.Context, s *scope) error {
	if !s.maintenance.DeletionTimestamp.IsZero() {
		return nil
	}
	return machinemaintenance.CompleteAndDelete(ctx, s.client, s.maintenance, r.Maintenances.ManagementCluster)
}

func (r *Reconciler) patchRemediation(ctx context.Context, s *scope, change func(*clusterv1.Machine) bool) error {
	return r.patchMachine(ctx, s, "setting annotation "+clusterv1.MachineSkipRemediationAnnotation, change)
}

func waitingCondition(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// unchanged returns the present condition.
func (r *Reconciler) unchanged(s *scope) metav1.Condition {
	if present := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance); present != nil {
		return *present
	}
	return metav1.Condition{}
}
