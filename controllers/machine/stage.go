package machine

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// eventInvalidStage on a Machine means that its stage annotation has an invalid value.
const eventInvalidStage = "InvalidStage"

// reconcileStage moves the maintenance of a running Machine's Node to the stage of the Machine's annotation, or ends the maintenance:
//
//	Idle, Cordon, Drain:  disable remediation (Cordon, Drain) ─► create or update the NodeMaintenance ─► report
//	none, Complete:       complete and delete the NodeMaintenance ─► enable remediation ─► report
//
// It also ends a drain that another management cluster has left behind on the Node.
func (r *Reconciler) reconcileStage(ctx context.Context, s *scope) error {
	_, requested := s.machine.Annotations[v1alpha1.MachineStageAnnotation]
	if !s.cluster.DeletionTimestamp.IsZero() || !requested && s.policy == nil && !conditions.Has(s.machine, v1alpha1.MachineNodeMaintenance) {
		return nil
	}
	condition, err := r.applyStage(ctx, s)
	if err != nil {
		return err
	}
	if condition.Reason == v1alpha1.ReasonInvalidStage && conditions.GetMessage(s.machine, v1alpha1.MachineNodeMaintenance) != condition.Message {
		r.recorder.Event(s.machine, corev1.EventTypeWarning, eventInvalidStage, condition.Message)
	}
	return r.setCondition(ctx, s, condition)
}

// applyStage takes the next step and returns the resulting condition of the Machine. The zero condition means that the Machine must have none.
func (r *Reconciler) applyStage(ctx context.Context, s *scope) (metav1.Condition, error) {
	stage, problem := machinedrain.StageOf(s.machine)
	var err error
	if s.client, err = r.Clusters.Client(ctx, s.clusterKey()); err == nil {
		s.found, s.node, err = machinemaintenance.Find(ctx, s.client, s.clusterKey(), s.machine)
		s.maintenance = s.found.Maintenance
	}
	switch {
	case s.policy != nil && s.maintenance != nil && machinedrain.OrphanedByMove(s.maintenance, s.machine, r.Maintenances.ManagementCluster):
		ctrl.LoggerFrom(ctx).Info("The Machine is no longer being deleted after a move from another management cluster, completing its NodeMaintenance", "NodeMaintenance", klog.KObj(s.maintenance))
		return r.unchanged(s), r.completeMaintenance(ctx, s)
	case problem != "":
		return waitingCondition(v1alpha1.ReasonInvalidStage, problem), nil
	case workload.IsNotConnected(err) && stage == "":
		return r.unchanged(s), nil
	case workload.IsNotConnected(err):
		return waitingCondition(v1alpha1.ReasonWaitingForWorkloadCluster, machinedrain.WaitingForConnection), nil
	case err != nil:
		return metav1.Condition{}, err
	case stage == "" || stage == v1alpha1.StageComplete:
		return r.endStage(ctx, s, stage)
	case s.policy == nil:
		return waitingCondition(v1alpha1.ReasonNotManaged, "No MachineDrainPolicy selects the Machine, so the annotation "+v1alpha1.MachineStageAnnotation+" has no effect"), nil
	default:
		return r.keepStage(ctx, s, stage)
	}
}

// keepStage creates or updates the NodeMaintenance in the requested stage.
func (r *Reconciler) keepStage(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage) (metav1.Condition, error) {
	switch {
	case s.maintenance != nil && s.maintenance.Spec.Stage == v1alpha1.StageComplete: // stages only move forward, so it is deleted and recreated
		return machinedrain.StageCondition(stage, nil), r.completeMaintenance(ctx, s)
	case s.maintenance != nil && machinedrain.StageBefore(stage, s.maintenance.Spec.Stage):
		return machinedrain.StageCondition(stage, s.maintenance), nil
	}
	change := machinedrain.DisableRemediation
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
	condition := machinedrain.StageCondition(stage, kept)
	if taken := s.found.TakenMessage(); taken != "" {
		condition.Message += "\n" + taken
	}
	return condition, nil
}

// endStage completes the maintenance, and then enables remediation of the Machine. It completes a NodeMaintenance that a rollout has
// requested only if the annotation requests Complete.
func (r *Reconciler) endStage(ctx context.Context, s *scope, stage v1alpha1.NodeMaintenanceStage) (metav1.Condition, error) {
	if s.maintenance != nil && (stage == v1alpha1.StageComplete || s.maintenance.Annotations[v1alpha1.RequestedForAnnotation] == v1alpha1.RequestedForStage) {
		return machinedrain.StageCondition(v1alpha1.StageComplete, s.maintenance), r.completeMaintenance(ctx, s)
	}
	if err := r.patchRemediation(ctx, s, machinedrain.EnableRemediation); err != nil || stage == "" {
		return metav1.Condition{}, err
	}
	return machinedrain.StageCondition(v1alpha1.StageComplete, nil), nil
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
