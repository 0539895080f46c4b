// Package machine reconciles Machines. It sets the pre-drain hook on each Machine that a MachineDrainPolicy selects. When such a Machine is
// deleted, it drains the Node by a NodeMaintenance in the workload cluster, and then removes the hook. While the Machine is not being
// deleted, it carries out the stage annotation, by which a user who can edit the Machine cordons or drains its Node, and drains or cordons
// the Node for in-place updates. Drain rules and policy are the same for all of them.
package machine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expiring"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/writelimit"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/lookup"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=list;watch;patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machinedrainrules,verbs=list;watch
// +kubebuilder:rbac:groups=maintenance.cluster.x-k8s.io,resources=machinedrainpolicies,verbs=list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io;controlplane.cluster.x-k8s.io,resources=*,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets;namespaces,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Machines.
type Reconciler struct {
	Client client.Client
	Filter machinedrain.WatchFilter
	// APIReader reads infrastructure and control plane objects without a cache: their kinds are not known in advance.
	APIReader    client.Reader
	Clusters     *workload.Clusters
	Maintenances *machinemaintenance.Requester
	Recorder     *tracing.Recorder
	Outcomes     Outcomes // optional
	Clock        clock.PassiveClock
	// ConnectNow requests the connection to a workload cluster with a deleted Machine.
	ConnectNow func(cluster types.NamespacedName)

	events     record.EventRecorder
	controller controller.Controller
	references *expiring.Map[types.UID, referenced] // by Machine or Cluster

	volumeFacts   volumeFacts
	settings      shared[settings]
	clusterLabels shared[clusterLabels]
	turns         turns
	released      released
	conditions    writelimit.Limiter[types.NamespacedName]  // of conditions that report progress only
	records       writelimit.Limiter[types.NamespacedName]  // of the clocks of drains: see nextRecord
	memories      sync.Map                                  // what reconciliations remember, by the Machine's namespace and name: see memory
	blocked       sync.Map                                  // since when drains have been blocked, by the Machine's namespace and name: see recordAfter
	requested     sync.Map                                  // when drains in place were requested, by the Machine's namespace and name: see requestDrain
	handedOver    sync.Map                                  // to which managers Machines were handed over, by the Machine's namespace and name: see handOver
	followed      sync.Map                                  // machinedrain.Followed, by the Machine's namespace and name: see awaitFormerPolicy
	patches       sync.Map                                  // limiters of changes of annotations, by the Machine's namespace and name: see mayPatch
	retryAfter    func(types.NamespacedName, time.Duration) // reconciles a Machine again after a delay, regardless of its backoff
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	r.events = mgr.GetEventRecorderFor("node-maintenance-machine") //nolint:staticcheck // CAPI's own controllers record core events, which kubectl describe shows
	r.references = expiring.NewMap[types.UID, referenced](ctx)
	var err error
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named("machine").
		For(&clusterv1.Machine{}, builder.WithPredicates(machineChanged{})).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.machinesOfCluster),
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&clusterv1.Machine{}, r.suspendDrain()).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.nextInLine), builder.WithPredicates(drainEnded{})).
		Watches(&v1alpha1.MachineDrainPolicy{}, handler.EnqueueRequestsFromMapFunc(r.machinesOfNamespace),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1.MachineDrainRule{}, handler.EnqueueRequestsFromMapFunc(r.machinesWithRules),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Clusters.Source("machine", r.machinesOfCluster, clustercache.WatchForProbeFailure(workload.ProbeFailureWindow))).
		WatchesRawSource(source.Func(r.watchChanges)).
		WatchesRawSource(source.Func(r.keepQueue)).
		WithOptions(options).
		Build(workload.RetryConflicts[reconcile.Request](r))
	return errors.Wrap(err, "setting up the machine controller")
}

// Reconcile drains the Node of a deleted Machine and then removes its hook. For a Machine that is not being deleted, it sets or removes the
// hook, and carries out what the stage annotation or an in-place update requests.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	machine, now := &clusterv1.Machine{}, r.Clock.Now() // before it is known whether the Machine is paused or held: see Requester.Continue
	if err := r.Client.Get(ctx, request.NamespacedName, machine); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			r.patches.Delete(request.NamespacedName)
			r.handedOver.Delete(request.NamespacedName)
			r.followed.Delete(request.NamespacedName)
			r.Maintenances.Forget(request.NamespacedName)
			r.Recorder.ForgetMachine(request.NamespacedName)
		}
		return reconcile.Result{}, errors.Wrapf(client.IgnoreNotFound(err), "getting Machine %s", request.NamespacedName)
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(machine.Namespace, machine.Spec.ClusterName), "Machine", klog.KObj(machine)))
	s := &scope{machine: machine, now: now}
	defer r.endTurn(s) // also if a step panics
	s.findHooks()
	if responsibility := r.Filter.ResponsibilityFor(machine); responsibility != machinedrain.Reconciles {
		return reconcile.Result{}, r.leave(ctx, s, responsibility)
	}
	r.handedOver.Delete(request.NamespacedName)
	s.before = r.beginMemory(machine)
	result, err := r.reconcile(ctx, s)
	switch {
	case machinedrain.IsDraining(s.machine):
		result, err = r.reportFailure(ctx, s, result, err)
	case err != nil && !answers.IsConflict(err):
		r.requested.Delete(request.NamespacedName) // no Machine waits for a drain that cannot be requested
	}
	if !s.blind && err == nil { // a failure says nothing about the drain
		r.endBlock(s)
	}
	if err != nil {
		return workload.Result(err)
	}
	return result, nil
}

// continueDrain ends the suspension of a drain whose NodeMaintenance in the cache is up to date, or is not updated any more. After a start
// of the manager, a pause or a hold, every drain is suspended until then.
func (r *Reconciler) continueDrain(s *scope) {
	if s.maintenance != nil && s.maintenance.Drains() && r.Maintenances.Continue(s.machine, s.now) {
		r.Clusters.ContinueDrain(s.nameOfCluster(), s.node.Name)
	}
}

func (r *Reconciler) reconcile(ctx context.Context, s *scope) (reconcile.Result, error) {
	machine := s.machine
	switch err := r.findCluster(ctx, s); {
	case err != nil:
		return reconcile.Result{}, err
	case machinedrain.IsPaused(s.cluster, machine):
		if machinedrain.IsDraining(machine) {
			observeUnended(s, reasonPaused)
		}
		r.Maintenances.Suspend(client.ObjectKeyFromObject(machine), s.now)
		r.memoryOf(machine).overdue = time.Time{}
		return reconcile.Result{}, nil
	}
	if s.cluster == nil {
		return r.reconcileWithoutCluster(ctx, s)
	}
	var err error
	if s.settings, err = r.observedSettings(ctx, machine.Namespace); err != nil { // before they are read to decide by them
		return reconcile.Result{}, err
	}
	policies := &v1alpha1.MachineDrainPolicyList{}
	if err := r.Client.List(ctx, policies, client.InNamespace(machine.Namespace)); err != nil {
		return reconcile.Result{}, errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", machine.Namespace)
	}
	selection, unread := r.Maintenances.PolicyFor(machine, s.cluster, machinedrain.ParsePolicies(policies.Items))
	s.policy, s.undecided, s.unread = selection.Settings(machine), selection.Undecided, unread
	s.unselected = s.policy == nil && unread == nil
	r.awaitPolicy(ctx, s)
	s.findHooks()
	s.isWatched = slices.ContainsFunc(policies.Items, func(policy v1alpha1.MachineDrainPolicy) bool {
		return machinedrain.PolicyMaySelectCluster(&policy, s.cluster.Labels)
	})
	switch {
	case machine.DeletionTimestamp.IsZero():
		return r.reconcileRunning(ctx, s)
	case !machinedrain.HasHook(machine): // Cluster API completes the deletion; a Machine that is deleted without the hook never gets it
		r.forget(client.ObjectKeyFromObject(machine))
		return reconcile.Result{}, r.reconcileWithoutHook(ctx, s)
	default:
		return r.reconcileDelete(ctx, s)
	}
}

// findCluster sets the Cluster of the Machine, nil if it does not exist in the cache.
func (r *Reconciler) findCluster(ctx context.Context, s *scope) (err error) {
	s.cluster, err = util.GetClusterByName(ctx, r.Client, s.machine.Namespace, s.machine.Spec.ClusterName)
	if apierrors.IsNotFound(errors.Cause(err)) {
		s.cluster, err = nil, nil
	}
	return errors.Wrapf(err, "getting the Cluster of Machine %s", klog.KObj(s.machine))
}

// reconcileWithoutCluster removes the hook of a deleted Machine whose Cluster does not exist: no controller could ever remove it.
func (r *Reconciler) reconcileWithoutCluster(ctx context.Context, s *scope) (reconcile.Result, error) {
	if !machinedrain.HasHook(s.machine) || s.machine.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	if live, err := r.liveCluster(ctx, s); err != nil || live != nil {
		return reconcile.Result{RequeueAfter: observeRetry}, err
	}
	return reconcile.Result{}, r.patchMachine(ctx, s, "removing the hook", machinedrain.RemoveHook)
}

// liveCluster returns the Cluster of the Machine as the API server has it, nil if it does not exist: the watch of Clusters may lag behind
// that of Machines. The role permits no get of Clusters.
func (r *Reconciler) liveCluster(ctx context.Context, s *scope) (*clusterv1.Cluster, error) {
	clusters := &clusterv1.ClusterList{}
	named := client.MatchingFields{metav1.ObjectNameField: s.machine.Spec.ClusterName}
	if err := r.APIReader.List(ctx, clusters, client.InNamespace(s.machine.Namespace), named); err != nil {
		return nil, errors.Wrapf(err, "looking for the Cluster of Machine %s", klog.KObj(s.machine))
	}
	if len(clusters.Items) == 0 {
		return nil, nil //nolint:nilnil // it does not exist
	}
	return &clusters.Items[0], nil
}

// reconcileRunning sets the hook of a Machine that is not being deleted if a policy selects it, and removes it if none does. It then
// carries out what the stage annotation or an in-place update requests. If the Cluster is being deleted, it removes the hook, and only
// continues a drain in place that has begun.
func (r *Reconciler) reconcileRunning(ctx context.Context, s *scope) (reconcile.Result, error) {
	doing, change, next := "removing the hook", machinedrain.RemoveHook, r.reconcileStage
	switch {
	case !s.cluster.DeletionTimestamp.IsZero():
		next = r.continueInDeletedCluster
	case r.awaitsLabels(ctx, s):
		doing, change, next = "keeping the hook", machinedrain.KeepHook, r.holdUnconfirmed
	case s.isReportOutdated(): // before the hook is removed: without it, the condition would be that of a drain in progress
		return reconcile.Result{RequeueAfter: observeRetry}, r.setCondition(ctx, s, metav1.Condition{})
	case !r.Filter.Selects(s.cluster): // without a connection, the Node could not be drained
	case s.hasUnreadPolicy():
		doing, change, next = "keeping the hook", machinedrain.KeepHook, r.holdRunning
	case s.undecided != nil:
		doing, change = "keeping the hook", machinedrain.KeepHook
	case s.awaitsPolicy() && machinedrain.HasHook(s.machine):
		doing, change = "keeping the hook", machinedrain.KeepHook
		r.retryAfter(client.ObjectKeyFromObject(s.machine), s.policySettles.Sub(s.now))
	case s.policy != nil:
		doing, change = "setting the hook", r.Filter.SetHook
	}
	switch err := r.patchMachine(ctx, s, doing, change); {
	case errors.Is(err, errRestored):
		ctrl.LoggerFrom(ctx).Info("Not changing the annotations of the Machine for now", "reason", err.Error())
		result, err := next(ctx, s)
		if result.RequeueAfter == 0 {
			result.RequeueAfter = patchInterval
		}
		return result, err
	case err != nil:
		return reconcile.Result{}, err
	}
	return next(ctx, s)
}

// memory is what the reconciliations of a Machine remember. Those of other Machines do not read it, and a Machine has one reconciliation
// at a time, so it needs no lock. Each time but failedContact is since when something has lasted, zero if it does not. A restart of the
// manager delays what depends on it.
type memory struct {
	failure      workload.Failure // of the reconciliation
	unconnected  time.Time        // the Node cannot be looked up without a connection: see findNode
	policyGone   time.Time        // no policy selects the Machine: see awaitPolicy
	isPolicyGone bool             // the API server has confirmed policyGone
	unrequired   time.Time        // nothing requires the maintenance before an update in place: see heldUpdate
	rulesGone    time.Time        // MachineDrainRules of the drain are gone: see awaitReplacement
	overdue      time.Time        // the drain timeout is exceeded: see observeOverdue

	failedContact time.Time // when an attempt to reach the workload cluster last failed: see the method failedContact

	// The following end with the first reconciliation that does not find them again.
	unasked     workload.Failure // of the requests to the API server that confirm a turn: see turnProblem
	unconfirmed time.Time        // the drain waits for its confirmation: see mayBeConfirmed
}

func (r *Reconciler) memoryOf(m *clusterv1.Machine) *memory {
	remembered, _ := r.memories.LoadOrStore(client.ObjectKeyFromObject(m), &memory{})
	return remembered.(*memory) //nolint:forcetypeassert // nothing else is stored
}

// beginMemory returns what the reconciliations of a Machine remember. It ends what this one must find again for it to last.
func (r *Reconciler) beginMemory(m *clusterv1.Machine) (before memory) {
	remembered := r.memoryOf(m)
	before = *remembered
	remembered.unasked, remembered.unconfirmed = workload.Failure{}, time.Time{}
	return before
}

// scope is the state of the reconciliation of one Machine.
type scope struct {
	machine *clusterv1.Machine
	cluster *clusterv1.Cluster
	policy  *v1alpha1.MachineDrainPolicy
	now     time.Time
	before  memory // when the reconciliation began

	settings settings // that the cache had before the reconciliation read its policies and rules: see areSettingsDelivered

	// undecided is the policy of which it is not known whether it selects the Machine, because a selector is invalid. It is nil if that is
	// known.
	undecided *v1alpha1.MachineDrainPolicy

	hooks      []machinedrain.Hook // of other owners, which hold the drain
	unselected bool                // no policy selects the Machine, and none that cannot be decoded may
	unread     *setaside.Error     // the policy that may select the Machine and cannot be decoded; nil: it is known which policy the Machine follows
	isWatched  bool                // a policy selects the Cluster, so that its NodeMaintenances are watched

	unadmitted error // why it is not known whether the Node is drained at all; nil: it is drained

	isNodeLookedUp bool // the Machine has no nodeRef: the name of the Node was found by the provider ID, see findNode

	policySettles time.Time // until when the policy may be replaced, zero if it may not: see awaitsPolicy and awaitsFormerPolicy
	goneProblem   error     // why the API server cannot confirm for a while that a policy or rule is gone or another one; nil: it can, or was not asked

	// The following fields are set once the workload cluster has been read.
	client      client.Client
	node        *corev1.Node
	found       machinedrain.Found        // the result of the lookup of its NodeMaintenance
	maintenance *v1alpha1.NodeMaintenance // nil until it exists
	liveNode    *corev1.Node              // as the API server has it, nil until it was read, see readNode

	machinedrain.Situation // for decisions that are made without the NodeMaintenance, too

	blind      bool // the drain cannot be observed, or something prevents it from beginning
	confirming bool // drain and wait for volumes are over, and the API server is asked whether the watches have delivered everything

	// drainOver and volumesOver mean that this part has completed, timed out or is skipped. Cluster API does not repeat it.
	drainOver, volumesOver bool
	// timedOut are the messages of the parts that have timed out. They say what these parts were waiting for.
	timedOut []string
	// drainTimeoutMessage and volumesTimeoutMessage are the messages of the drain and of the wait for volumes, empty unless they have timed
	// out.
	drainTimeoutMessage, volumesTimeoutMessage string
}

// observe sets the NodeMaintenance that was read, nil if there is none.
func (s *scope) observe(m *v1alpha1.NodeMaintenance) {
	s.maintenance, s.Maintenance = m, lookup.Of(m)
}

func (s *scope) clusterKey() types.NamespacedName { return client.ObjectKeyFromObject(s.cluster) }

// outcome is the result of a step.
type outcome struct {
	action action
	// reason and message are those of the Machine's condition.
	reason, message string
	// at is when to reconcile again if no event triggers it earlier.
	at time.Time
	// blind means that the drain cannot be observed while the step waits, or that something prevents it from beginning.
	blind bool
}

// action is what to do after a step.
type action int

const (
	proceed action = iota // the step has completed: run the next step
	wait                  // the step waits for an event
	release               // the drain has ended: remove the hook of a deleted Machine
)

// reconcileDelete runs the steps of the deletion of a Machine in order, up to the first that waits:
//
//	admit ─► await other hooks ─► request the drain ─► await the turn ─► await the drain
//	─► await the volumes ─► drain the Pods of DaemonSets ─► confirm the Pods ─► remove the hook
func (r *Reconciler) reconcileDelete(ctx context.Context, s *scope) (reconcile.Result, error) {
	if s.HeldByHooks { // also if the hold cannot be recorded
		r.Maintenances.Suspend(client.ObjectKeyFromObject(s.machine), s.now)
	}
	if _, err := r.Clusters.Client(ctx, s.clusterKey()); !workload.IsNotConnected(err) { // also if a step before the lookup of the Node fails
		r.memoryOf(s.machine).unconnected = time.Time{}
	}
	// Otherwise Cluster API would not drain the Node if another actor removed the hook.
	if err := r.patchMachine(ctx, s, "removing copied exclude annotations", machinedrain.RemoveExcludes); err != nil {
		return reconcile.Result{}, err
	}
	if s.HeldByHooks && !s.policySettles.IsZero() && !machinedrain.WasHeldByHooks(s.machine) { // the policy may ignore these hooks
		return r.reportWait(ctx, s, s.awaitingPolicy())
	}
	return r.runSteps(ctx, s, r.admit, r.awaitServed, r.requestMaintenance, r.awaitTurn, r.awaitDrained, r.awaitVolumesDetached, r.awaitDaemonSets, r.confirmPods)
}

type step func(context.Context, *scope) (outcome, error)

// runSteps runs steps of a drain in order, up to the first that waits or ends the drain.
func (r *Reconciler) runSteps(ctx context.Context, s *scope, steps ...step) (reconcile.Result, error) {
	for _, step := range steps {
		result, err := step(ctx, s)
		if err != nil {
			return reconcile.Result{}, err
		}
		if result.blind {
			result = r.limit(ctx, s, result)
		}
		switch result.action {
		case wait:
			return r.report(ctx, s, result)
		case release:
			return r.finish(ctx, s, result)
		case proceed:
		}
	}
	return r.finish(ctx, s, s.result())
}

// finish ends a drain that has completed, timed out or is not needed.
func (r *Reconciler) finish(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	if s.machine.DeletionTimestamp.IsZero() {
		return r.keepDrained(ctx, s, result)
	}
	return r.release(ctx, s, result)
}

// result returns the outcome of a drain that has completed or timed out.
func (s *scope) result() outcome {
	if len(s.timedOut) > 0 {
		return outcome{action: release, reason: v1alpha1.ReasonTimedOut, message: strings.Join(s.timedOut, "\n")}
	}
	return outcome{action: release, reason: v1alpha1.ReasonMachineDrained, message: "The Node is drained"}
}

// forget releases the drain watch of a Machine and deletes all state about it.
func (r *Reconciler) forget(machine types.NamespacedName) {
	r.forgetDrain(machine)
	r.conditions.Remove(machine)
	r.records.Remove(machine)
}

// forgetDrain is forget for a Machine whose condition is still written: how often is limited.
func (r *Reconciler) forgetDrain(machine types.NamespacedName) {
	removeDrainMetrics(machine)
	r.volumeFacts.forget(machine)
	r.memories.Delete(machine)
	r.blocked.Delete(machine)
	r.requested.Delete(machine)
	r.Clusters.ReleaseAll(watchOwner(machine))
}
