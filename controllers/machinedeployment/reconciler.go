// Package machinedeployment announces in workload clusters which Nodes the rollout of a MachineDeployment will replace. If the policy
// requires it, the package also cordons these Nodes. Package drain/rollout makes the decisions.
package machinedeployment

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rollout"
)

// Reconciler reconciles MachineDeployments.
type Reconciler struct {
	Client       client.Client
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Clock        clock.PassiveClock
	Filter       machinedrain.WatchFilter
	// Unread are the MachineDrainPolicies that cannot be decoded.
	Unread *setaside.Objects

	controller controller.Controller
	followed   sync.Map // machinedrain.Followed of its Machines by UID, by the MachineDeployment's namespace and name: see awaitPolicies
}

// scope is the state of the reconciliation of one MachineDeployment.
type scope struct {
	cluster    *clusterv1.Cluster
	deployment *clusterv1.MachineDeployment
	machines   []clusterv1.Machine // shared with the cache, must not be modified
	policies   machinedrain.Policies
	unsettled  sets.Set[types.UID] // the Machines that another policy selects than before, maybe for a moment only: see awaitPolicies
	remote     client.Client
	present    map[types.NamespacedName]*v1alpha1.NodeMaintenance
}

// unreadRetry is how often a MachineDeployment is reconciled while a policy cannot be decoded, if no event triggers it.
const unreadRetry = time.Minute

// Reconcile creates, updates and withdraws the NodeMaintenances of a MachineDeployment's Machines as drain/rollout decides. It ignores
// Machines that are being deleted or whose maintenance another actor requests.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	s := &scope{deployment: &clusterv1.MachineDeployment{}}
	if err := r.Client.Get(ctx, request.NamespacedName, s.deployment); err != nil {
		if apierrors.IsNotFound(err) {
			r.followed.Delete(request.NamespacedName)
		}
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "getting MachineDeployment %s", request.NamespacedName)
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Namespace, s.deployment.Spec.ClusterName)))
	if err := r.observe(ctx, s); err != nil {
		return workload.Result(answers.IgnoreDoesNotExist(err)) // without the Cluster, nothing is to be done
	}
	if machinedrain.IsClusterPaused(s.cluster) {
		return reconcile.Result{}, nil
	}
	if len(r.Unread.List("MachineDrainPolicy", s.deployment.Namespace)) > 0 { // it may select the Machines: what is announced or cordoned stays so
		return reconcile.Result{RequeueAfter: unreadRetry}, nil
	}
	now := r.Clock.Now()
	settle := r.awaitPolicies(s, now)
	decided := rollout.Decision{}
	if r.Filter.Selects(s.deployment) { // otherwise nothing is wanted any more
		decided = rollout.Decide(rollout.Observe(s.cluster, s.deployment, s.machines, s.policyOf), now)
	}
	if err := r.applyAll(ctx, s, decided.Stages); err != nil {
		return workload.Result(err)
	}
	until := earlier(decided.Until, settle)
	if until.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(until.Sub(now), time.Second)}, nil
}

func (r *Reconciler) observe(ctx context.Context, s *scope) (err error) {
	if s.cluster, err = util.GetClusterByName(ctx, r.Client, s.deployment.Namespace, s.deployment.Spec.ClusterName); err != nil {
		return errors.Wrapf(err, "getting Cluster %s", s.deployment.Spec.ClusterName)
	}
	if !r.Filter.Selects(s.cluster) {
		return clustercache.ErrClusterNotConnected // nor will it be
	}
	if s.machines, err = r.Maintenances.MachinesOf(ctx, s.cluster, s.deployment); err != nil {
		return err
	}
	policies := &v1alpha1.MachineDrainPolicyList{}
	if err := r.Client.List(ctx, policies, client.InNamespace(s.deployment.Namespace)); err != nil {
		return errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", s.deployment.Namespace)
	}
	s.policies = machinedrain.ParsePolicies(policies.Items)
	key := client.ObjectKeyFromObject(s.cluster)
	if s.remote, err = r.Clusters.Client(ctx, key); err != nil {
		return err
	}
	s.present, err = r.Maintenances.List(ctx, s.remote, key, s.machines, func(m *v1alpha1.NodeMaintenance) bool {
		return m.DeletionTimestamp.IsZero() && m.Annotations[v1alpha1.RequestedForAnnotation] == v1alpha1.RequestedForRollout
	})
	return err
}

func (s *scope) policyOf(machine *clusterv1.Machine) *v1alpha1.MachineDrainPolicy {
	return s.policies.For(machine, s.cluster.Labels).Settings(machine)
}

// awaitPolicies finds the Machines that another policy selects than before: a tool may replace their policy. It returns when the first of
// them follows the other one, zero if none has to wait. Their former policies are kept in memory: a restart ends this wait.
func (r *Reconciler) awaitPolicies(s *scope, now time.Time) (settle time.Time) {
	key := client.ObjectKeyFromObject(s.deployment)
	remembered, _ := r.followed.Load(key)
	before, _ := remembered.(map[types.UID]machinedrain.Followed)
	after := make(map[types.UID]machinedrain.Followed, len(s.machines))
	s.unsettled = sets.New[types.UID]()
	for i := range s.machines {
		machine := &s.machines[i]
		followed, until := before[machine.UID].Next(machine, s.policyOf(machine), now)
		if until.IsZero() {
			followed = followed.Settled()
		} else {
			s.unsettled.Insert(machine.UID)
		}
		after[machine.UID], settle = followed, earlier(settle, until)
	}
	r.followed.Store(key, after)
	return settle
}

// earlier returns the earlier one of two times that are not zero, or the one that is not.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// applyAll applies the stages that were decided, by the name of the Machine. A request for one Machine that the API server refuses, or that
// gets no answer while a health probe does, does not keep the others from being made.
func (r *Reconciler) applyAll(ctx context.Context, s *scope, stages map[string]v1alpha1.NodeMaintenanceStage) (failed error) {
	for i := range s.machines {
		began := r.Clock.Now()
		err := r.apply(ctx, s, &s.machines[i], stages[s.machines[i].Name])
		if workload.IsNotConnected(err) || answers.IsUnanswered(err) && !r.answersSince(ctx, s, began) {
			return err
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// answersSince reports whether the workload cluster has answered a health probe since a time: then an admission webhook may hang for one
// Node.
func (r *Reconciler) answersSince(ctx context.Context, s *scope, t time.Time) bool {
	state := r.Clusters.HealthState(ctx, client.ObjectKeyFromObject(s.cluster))
	return state.ConsecutiveFailures == 0 && state.LastProbeSuccessTime.After(t)
}

// apply moves a Machine's NodeMaintenance to the wanted stage, or completes it if the stage is empty. Stages only move forward: to change
// from Cordon to Idle, apply completes the NodeMaintenance, and the event of its deletion triggers the creation of another one. None is
// wanted for a Machine that the watch filter does not select.
func (r *Reconciler) apply(ctx context.Context, s *scope, machine *clusterv1.Machine, wanted v1alpha1.NodeMaintenanceStage) error {
	policy := s.policyOf(machine)
	if r.isLeft(s, machine, policy) {
		return nil
	}
	if !r.Filter.Selects(machine) {
		wanted = ""
	}
	present := s.present[client.ObjectKeyFromObject(machine)]
	switch {
	case present != nil && (wanted == "" || machinedrain.StageBefore(wanted, present.Spec.Stage)):
		return machinemaintenance.CompleteAndDelete(ctx, s.remote, present, r.Maintenances.ManagementCluster)
	case wanted == "" || present != nil && present.Spec.Stage == wanted:
		return nil
	default:
		_, _, err := r.Maintenances.Ensure(ctx, s.remote, machinemaintenance.Request{
			Cluster: s.cluster, Machine: machine, Policy: policy, Stage: wanted, For: v1alpha1.RequestedForRollout,
		})
		return err
	}
}

// isLeft reports whether the NodeMaintenance of a Machine stays as it is: the Machine is being deleted or paused, another actor requests a
// maintenance, or its policy may be replaced: another one selects the Machine, see awaitPolicies, or none, until the machine controller
// removes the hook.
func (r *Reconciler) isLeft(s *scope, machine *clusterv1.Machine, policy *v1alpha1.MachineDrainPolicy) bool {
	requested, problem := machinedrain.RequestedStage(machine, policy)
	mayBeReplaced := policy == nil && machinedrain.HasHook(machine) || s.unsettled.Has(machine.UID)
	return !machine.DeletionTimestamp.IsZero() || requested != "" || problem != "" || machinedrain.HasPauseAnnotation(machine) ||
		mayBeReplaced && r.Filter.Selects(machine)
}
