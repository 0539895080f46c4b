// Package stage maintains the Nodes of Machines that are not being deleted. A user who can edit a Machine in the management cluster can
// cordon or drain its Node by an annotation, with the same drain rules and policy as for a deletion.
package stage

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	machinecontroller "github.com/capnm/cluster-api-node-maintenance/controllers/machine"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// eventInvalidStage means that the stage annotation of a Machine has an invalid value.
const eventInvalidStage = "InvalidStage"

// Reconciler reconciles the stage annotation of Machines that are not being deleted.
type Reconciler struct {
	Client           client.Client
	Clusters         *workload.Clusters
	Maintenances     *machinemaintenance.Requester
	Clock            clock.PassiveClock
	WatchFilterValue string

	recorder   record.EventRecorder
	controller watcher
}

// scope is the state of the reconciliation of one Machine.
type scope struct {
	machine *clusterv1.Machine
	cluster *clusterv1.Cluster
	policy  *v1alpha1.MachineDrainPolicy
	asked   v1alpha1.NodeMaintenanceStage
	remote  client.Client
	found   machinedrain.Found
	present *v1alpha1.NodeMaintenance
}

// Reconcile moves the maintenance of a Machine's Node to the stage of the Machine's annotation, or ends the maintenance:
//
//	Idle, Cordon, Drain:  disable remediation (Cordon, Drain) ─► create or update the NodeMaintenance ─► report
//	none, Complete:       complete and delete the NodeMaintenance ─► enable remediation ─► report
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	s := &scope{machine: &clusterv1.Machine{}}
	if err := r.Client.Get(ctx, request.NamespacedName, s.machine); err != nil {
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "getting Machine %s", request.NamespacedName)
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(s.machine.Namespace, s.machine.Spec.ClusterName), "Machine", klog.KObj(s.machine)))
	concerns, err := r.observe(ctx, s)
	if err != nil || !concerns {
		return reconcile.Result{}, err
	}
	condition, err := r.applyStage(ctx, s)
	if err != nil {
		return workload.Result(err)
	}
	return reconcile.Result{}, r.report(ctx, s, condition)
}

// observe reads the objects that decide the next step. It returns whether this controller is responsible for the Machine.
func (r *Reconciler) observe(ctx context.Context, s *scope) (concerns bool, err error) {
	if !s.machine.DeletionTimestamp.IsZero() { // the machine controller takes over the NodeMaintenance in its present stage
		return false, nil
	}
	s.cluster, err = util.GetClusterByName(ctx, r.Client, s.machine.Namespace, s.machine.Spec.ClusterName)
	if err != nil {
		return false, errors.Wrapf(client.IgnoreNotFound(errors.Cause(err)), "getting the Cluster of Machine %s", klog.KObj(s.machine))
	}
	if annotations.IsPaused(s.cluster, s.machine) || !s.cluster.DeletionTimestamp.IsZero() {
		return false, nil
	}
	policies := &v1alpha1.MachineDrainPolicyList{}
	if err := r.Client.List(ctx, policies, client.InNamespace(s.machine.Namespace)); err != nil {
		return false, errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", s.machine.Namespace)
	}
	s.policy = machinedrain.PolicyFor(s.machine, s.cluster.Labels, policies.Items)
	_, asked := s.machine.Annotations[v1alpha1.MachineStageAnnotation]
	return asked || s.policy != nil || conditions.Has(s.machine, v1alpha1.MachineNodeMaintenance), nil
}

// applyStage takes the next step and returns the resulting condition of the Machine. The zero condition means that the Machine must have none.
func (r *Reconciler) applyStage(ctx context.Context, s *scope) (metav1.Condition, error) {
	var problem string
	if s.asked, problem = machinedrain.StageOf(s.machine); problem != "" {
		return waiting(v1alpha1.ReasonInvalidStage, problem), nil
	}
	var err error
	cluster := client.ObjectKeyFromObject(s.cluster)
	if s.remote, err = r.Clusters.Client(ctx, cluster); err == nil {
		s.found, _, err = r.Maintenances.Get(ctx, s.remote, cluster, s.machine)
		s.present = s.found.Maintenance
	}
	switch {
	case workload.IsNotConnected(err) && s.asked == "":
		return r.unchanged(s), nil
	case workload.IsNotConnected(err):
		return waiting(v1alpha1.ReasonWaitingForWorkloadCluster, "Waiting for a connection to the workload cluster"), nil
	case err != nil:
		return metav1.Condition{}, err
	case s.asked == "" || s.asked == v1alpha1.StageComplete:
		return r.end(ctx, s)
	case s.policy == nil:
		return waiting(v1alpha1.ReasonNotManaged, "No MachineDrainPolicy selects the Machine, so the annotation "+v1alpha1.MachineStageAnnotation+" is without effect"), nil
	default:
		return r.keep(ctx, s)
	}
}

// keep creates or updates the NodeMaintenance in the requested stage.
func (r *Reconciler) keep(ctx context.Context, s *scope) (metav1.Condition, error) {
	switch {
	case s.present != nil && s.present.Spec.Stage == v1alpha1.StageComplete: // stages only move forward, so it is deleted and recreated
		return machinedrain.StageCondition(s.asked, nil), r.withdraw(ctx, s)
	case s.present != nil && machinedrain.StageBefore(s.asked, s.present.Spec.Stage):
		return machinedrain.StageCondition(s.asked, s.present), nil
	}
	if err := r.keepFromRemediation(ctx, s, s.asked != v1alpha1.StageIdle); err != nil {
		return metav1.Condition{}, err
	}
	kept, problem, err := r.Maintenances.Ensure(ctx, s.remote, machinemaintenance.Request{
		Cluster: s.cluster, Machine: s.machine, Policy: s.policy, Stage: s.asked, For: v1alpha1.RequestedForStage,
	})
	if err != nil {
		return metav1.Condition{}, err
	}
	if problem != nil {
		return waiting(problem.Reason, problem.Message), nil
	}
	condition := machinedrain.StageCondition(s.asked, kept)
	if taken := s.found.TakenMessage(); taken != "" {
		condition.Message += "\n" + taken
	}
	return condition, nil
}

// end completes the requested maintenance, and then enables remediation of the Machine. It completes a NodeMaintenance that a rollout has
// requested only if the annotation requests Complete.
func (r *Reconciler) end(ctx context.Context, s *scope) (metav1.Condition, error) {
	requested := s.present != nil && (s.asked == v1alpha1.StageComplete || s.present.Annotations[v1alpha1.RequestedForAnnotation] == v1alpha1.RequestedForStage)
	if requested {
		return machinedrain.StageCondition(v1alpha1.StageComplete, s.present), r.withdraw(ctx, s)
	}
	if err := r.keepFromRemediation(ctx, s, false); err != nil || s.asked == "" {
		return metav1.Condition{}, err
	}
	return machinedrain.StageCondition(v1alpha1.StageComplete, nil), nil
}

func (r *Reconciler) withdraw(ctx context.Context, s *scope) error {
	if !s.present.DeletionTimestamp.IsZero() {
		return nil
	}
	return r.Maintenances.Withdraw(ctx, s.remote, s.present)
}

func (r *Reconciler) keepFromRemediation(ctx context.Context, s *scope, keep bool) error {
	changed := s.machine.DeepCopy()
	if !machinedrain.KeepFromRemediation(changed, keep) {
		return nil
	}
	err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{}))
	if err == nil {
		s.machine = changed
	}
	return errors.Wrapf(client.IgnoreNotFound(err), "setting annotation %s of Machine %s", clusterv1.MachineSkipRemediationAnnotation, klog.KObj(s.machine))
}

func waiting(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// unchanged returns the present condition.
func (r *Reconciler) unchanged(s *scope) metav1.Condition {
	if present := conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance); present != nil {
		return *present
	}
	return metav1.Condition{}
}

// report writes the condition. It also records an event when the annotation becomes invalid.
func (r *Reconciler) report(ctx context.Context, s *scope, condition metav1.Condition) error {
	if condition.Reason == v1alpha1.ReasonInvalidStage && conditions.GetMessage(s.machine, v1alpha1.MachineNodeMaintenance) != condition.Message {
		r.recorder.Event(s.machine, corev1.EventTypeWarning, eventInvalidStage, condition.Message)
	}
	_, err := machinecontroller.SetCondition(ctx, r.Client, s.machine, condition, r.Clock.Now())
	return err
}
