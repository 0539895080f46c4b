// Package nodemaintenance reconciles NodeMaintenances in workload clusters. It cordons the selected Nodes, creates an Evacuation for
// each Pod that drain/plan targets, withdraws from the Evacuations of other Pods, reports the progress of the drain, and finally restores
// the Nodes. The evacuation controllers carry out the Evacuations. The Sweeper cleans up what NodeMaintenances that no longer exist have
// left behind.
package nodemaintenance

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/expectations"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machinemaintenance"
	"github.com/capnm/cluster-api-node-maintenance/controllers/tracing"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/writelimit"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/cordon"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// Reconciler reconciles NodeMaintenances.
type Reconciler struct {
	Clusters *workload.Clusters
	Clock    clock.PassiveClock
	// ManagementCluster identifies the management cluster that this manager serves, see
	// v1alpha1.OwnerManagementClusterAnnotation.
	ManagementCluster string
	// Machines reads the management cluster's Machines and Clusters.
	Machines     client.Reader
	Maintenances *machinemaintenance.Requester
	// NodeAgent is the feature gate that lets agents on Nodes evacuate static Pods.
	NodeAgent bool
	Recorder  *tracing.Recorder

	controller controller.TypedController[workload.Request]
	statuses   writelimit.Limiter[workload.Request] // limits the rate of status patches that only report progress
	created    creations
	written    *expectations.Objects[*corev1.Node]
	conflicts  conflicts
	known      sync.Map // the NodeMaintenances of which something may be kept in memory, by workload.Request: see remembered
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	r.written = expectations.New[*corev1.Node](ctx, workload.TrimNode)
	r.Clusters.Subscribe(r.forgetDeleted)
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "nodemaintenance", r, options, r.enqueue)
	return err
}

// Watches returns the watches of a workload cluster's NodeMaintenances, Nodes and Evacuations.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("nodemaintenance-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{},
			workload.EnqueueObjects(cluster, r.itselfAndNeighbors(cluster)),
			predicate.TypedResourceVersionChangedPredicate[*v1alpha1.NodeMaintenance]{}),
		workload.Watch("nodemaintenance-Nodes", r.controller, &corev1.Node{},
			expectations.Observing(r.written, cluster, workload.EnqueueObjects(cluster, func(ctx context.Context, node *corev1.Node) []types.NamespacedName {
				return r.maintenancesOf(ctx, cluster, node)
			})), nodeChanged{}),
		workload.Watch("nodemaintenance-Evacuations", r.controller, &v1alpha1.Evacuation{},
			workload.EnqueueObjects(cluster, func(ctx context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
				return r.maintenancesOfNamed(ctx, cluster, e.Annotations[v1alpha1.EvacuationNodeAnnotation])
			})),
	}
}

// scope is the state of one reconciliation.
type scope struct {
	request     workload.Request
	client      client.Client
	maintenance *v1alpha1.NodeMaintenance // to be stored
	before      *v1alpha1.NodeMaintenance // as read
	now         time.Time
	requeueAt   time.Time // zero: an event starts the next reconciliation

	owner     *ownerMachine              // nil: the NodeMaintenance serves no Machine of this management cluster
	suspended bool                       // nothing is done, see machinedrain.IsSuspended
	recreated bool                       // the NodeMaintenance is being deleted, and is recreated at once
	nodes     []*corev1.Node             // the selected Nodes, read-only
	others    []v1alpha1.NodeMaintenance // a superset of those that share Nodes with this one, read-only
	drainedBy map[string][]*corev1.Node  // Nodes of the others that are in stage Drain, by NodeMaintenance name
	suspends  sets.Set[string]           // those of the others in stage Drain for which nothing is done

	unrestored     []string                // Nodes that are no longer selected and must still be restored
	changesOthers  bool                    // Nodes that are not selected have conditions that must change
	uncordonsAgain bool                    // Nodes must still become schedulable, see cordon.RestoresUnconditionally
	turns          nodeselection.Turns     // which Nodes wait because of maxParallelNodes
	cordonErrors   map[string]error        // of Nodes that could not be cordoned, by Node name
	refusals       refusals                // of what must be done before the maintenance has ended
	unanswered     error                   // of a request about an Evacuation that got no answer
	hanging        sets.Set[string]        // Namespaces that get no more withdrawals, see isHanging
	joined         map[string]*metav1.Time // see joinedAt
	drain          *drainState             // nil: the NodeMaintenance does not drain, or the Pods are not observed yet
	observation    workload.Observation    // of the Pods
}

func (s *scope) requeueBy(t time.Time) {
	if s.requeueAt.IsZero() || t.Before(s.requeueAt) {
		s.requeueAt = t
	}
}

// requeueAfter is requeueBy for a time that may be zero: then it does nothing.
func (s *scope) requeueAfter(t time.Time) {
	if !t.IsZero() {
		s.requeueBy(t)
	}
}

// step is one step of a reconciliation. If it returns done = false, the reconciliation ends. The event of the object that the step has
// written, or waits for, starts the next reconciliation.
type step func(context.Context, *scope) (done bool, err error)

// Reconcile reconciles one NodeMaintenance: see steps.
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name),
		"NodeMaintenance", klog.KRef("", request.Object.Name)))
	s := &scope{request: request, before: &v1alpha1.NodeMaintenance{}, now: r.Clock.Now()}
	return r.result(s, r.reconcile(ctx, s))
}

// result records how a reconciliation has ended, and returns when the next one follows.
func (r *Reconciler) result(s *scope, err error) (reconcile.Result, error) {
	if err != nil || s.suspended { // the Pods have not been evaluated
		r.Clusters.WithdrawConfirmation(s.request)
		r.Clusters.ForgetProgress(s.request)
	}
	failed := cmp.Or(s.refusals.first(), s.unanswered)
	if failed != nil {
		s.requeueBy(s.now.Add(refusedBackoff(s)))
	}
	if !workload.IsNotConnected(err) && !workload.IsPaused(err) {
		r.Clusters.Failures.Record(s.request, cmp.Or(err, failed), s.now)
	}
	if err != nil {
		return workload.Result(err)
	}
	return workload.RequeueAt(s.requeueAt, s.now), nil
}

func (r *Reconciler) reconcile(ctx context.Context, s *scope) (err error) {
	if s.client, err = r.Clusters.Client(ctx, s.request.Cluster); err != nil {
		return err
	}
	if err := s.client.Get(ctx, s.request.Object, s.before); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return r.cleanUpDeleted(ctx, s)
		}
		return errors.Wrapf(err, "getting NodeMaintenance %s", s.request.Object.Name)
	}
	r.known.Store(s.request, nil)
	s.maintenance = s.before.DeepCopy()
	if err := r.findMachine(ctx, s); err != nil {
		return err
	}
	if err := r.selectNodes(ctx, s); err != nil {
		return err
	}
	for _, step := range r.steps(s) {
		if done, err := step(ctx, s); err != nil || !done {
			return err
		}
	}
	return nil
}

// steps returns the steps of a NodeMaintenance.
func (r *Reconciler) steps(s *scope) []step {
	switch {
	case !s.maintenance.DeletionTimestamp.IsZero():
		return r.deletionSteps(s)
	case s.isNodeDeleted() && !s.isPaused(): // the Machine may be released before its drain continues here
		return []step{r.confirmNodeDeleted, r.withdrawFromDeletedNodes, r.reportRefused, r.moveToComplete, r.deleteMaintenance}
	case s.suspended: // workload.Clusters.Resume or ContinueDrain enqueues the NodeMaintenance when it is not any more
		return nil
	case s.maintenance.Drains() && s.isDeletedWithCluster(): // no manager moved it to Complete while the Machine existed
		return []step{r.moveToComplete}
	}
	switch s.maintenance.Spec.Stage {
	case v1alpha1.StageComplete:
		return r.completionSteps(s)
	case v1alpha1.StageDrain:
		return []step{
			r.addFinalizer, r.listNodes, r.takeTurns, r.cordon, r.evacuate, r.deleteRemainingPods, r.releaseDeselectedNodes,
			r.confirm, r.report, r.updateNodeConditions, r.reportRefused, r.readOutcome,
		}
	case v1alpha1.StageCordon:
		cordon := r.cordon
		if s.maintenance.StaysSchedulable() {
			cordon = r.uncordon
		}
		return []step{r.addFinalizer, r.listNodes, cordon, r.releaseDeselectedNodes, r.report, r.updateNodeConditions, r.reportRefused}
	default:
		return []step{r.report, r.updateNodeConditions, r.reportRefused}
	}
}

// deletionSteps returns the steps of a NodeMaintenance that is being deleted.
func (r *Reconciler) deletionSteps(s *scope) []step {
	switch {
	case !controllerutil.ContainsFinalizer(s.maintenance, v1alpha1.MaintenanceCompletionFinalizer): // the event that removeFinalizer has caused
		return []step{r.stopObserving}
	case s.suspended:
		return nil
	case s.isLeftToClusterAPI(): // the Node stays cordoned
		return []step{r.withdraw, r.updateNodeConditions, r.reportRefused, r.removeFinalizer, r.stopObserving}
	case s.recreated: // the Node stays cordoned, and the Evacuations are adopted
		return []step{r.removeFinalizer, r.stopObserving}
	case s.maintenance.Spec.Stage == v1alpha1.StageIdle: // it has changed no Node: another actor has set the finalizer, with a copy for example
		return []step{r.removeFinalizer, r.stopObserving}
	default:
		return []step{
			r.moveToComplete, r.withdraw, r.uncordon, r.releaseDeselectedNodes,
			r.report, r.updateNodeConditions, r.reportRefused, r.removeFinalizer, r.stopObserving,
		}
	}
}

// completionSteps returns the steps of a NodeMaintenance in stage Complete.
func (r *Reconciler) completionSteps(s *scope) []step {
	switch {
	case s.isLeftToClusterAPI():
		return []step{r.withdraw, r.report, r.updateNodeConditions, r.stopObserving, r.reportRefused}
	case s.keepsNodeCordoned():
		return []step{r.stopObserving, r.reportRefused}
	default:
		return []step{
			r.addFinalizer, r.withdraw, r.uncordon, r.releaseDeselectedNodes, r.report, r.updateNodeConditions, r.stopObserving, r.reportRefused, r.readOutcome,
		}
	}
}

// cleanUpDeleted cleans up after a NodeMaintenance that no longer exists.
func (r *Reconciler) cleanUpDeleted(ctx context.Context, s *scope) error {
	r.known.Delete(s.request)
	r.statuses.Remove(s.request)
	r.created.remove(s.request)
	r.Recorder.Forget(s.request)
	forgetWithoutPlace(s.request)
	r.Clusters.WithdrawConfirmation(s.request)
	r.Clusters.ForgetProgress(s.request)
	r.Clusters.Release(s.request.Cluster, watchOwner(s.request))
	return r.setNodeConditions(ctx, s)
}

// watchOwner returns the name of a NodeMaintenance as an owner of drain watches.
func watchOwner(request workload.Request) string { return "NodeMaintenance/" + request.Object.Name }

// addFinalizer adds the finalizer before the first side effect.
func (r *Reconciler) addFinalizer(ctx context.Context, s *scope) (bool, error) {
	if !controllerutil.AddFinalizer(s.maintenance, v1alpha1.MaintenanceCompletionFinalizer) {
		return true, nil
	}
	return r.patchMetadata(ctx, s, "adding the finalizer to")
}

func (r *Reconciler) removeFinalizer(ctx context.Context, s *scope) (bool, error) {
	if !controllerutil.RemoveFinalizer(s.maintenance, v1alpha1.MaintenanceCompletionFinalizer) {
		return true, nil
	}
	return r.patchMetadata(ctx, s, "removing the finalizer from")
}

// moveToComplete moves a NodeMaintenance to stage Complete.
func (r *Reconciler) moveToComplete(ctx context.Context, s *scope) (bool, error) {
	if s.maintenance.Spec.Stage == v1alpha1.StageComplete {
		return true, nil
	}
	if s.maintenance.Spec.Stage != v1alpha1.StageIdle && cordon.RestoresUnconditionally(s.maintenance) {
		if err := recordStage(ctx, s); err != nil {
			return false, err
		}
	}
	s.maintenance.Spec.Stage = v1alpha1.StageComplete
	return r.patchMetadata(ctx, s, "completing")
}

// recordStage stores in the status that the NodeMaintenance has left stage Idle. After it has moved to Complete, only the status tells that
// it was not moved there from Idle.
func recordStage(ctx context.Context, s *scope) error {
	changed := s.before.DeepCopy()
	startStages(changed, s.now)
	if err := s.client.Status().Patch(ctx, changed, client.MergeFromWithOptions(s.before, client.MergeFromWithOptimisticLock{})); err != nil {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "recording the stage of NodeMaintenance %s", s.maintenance.Name)
	}
	s.before, s.maintenance = changed, changed.DeepCopy()
	return nil
}

// isNodeDeleted reports whether the NodeMaintenance ends because its Node no longer exists.
func (s *scope) isNodeDeleted() bool {
	return len(s.nodes) == 0 && machinedrain.EndsWithNode(s.maintenance, s.request.Cluster)
}

// observeRetry is the interval of checks whether the watch has delivered a Node that exists.
const observeRetry = time.Second

// confirmNodeDeleted asks the API server whether the Node no longer exists. The watch may not have delivered it yet.
func (r *Reconciler) confirmNodeDeleted(ctx context.Context, s *scope) (bool, error) {
	live, err := r.Clusters.UncachedClient(ctx, s.request.Cluster)
	if err != nil {
		return false, err
	}
	nodes, err := selectedNodes(ctx, live, s.maintenance)
	if err != nil {
		return false, err
	}
	if len(nodes) > 0 {
		s.requeueBy(s.now.Add(observeRetry))
	}
	return len(nodes) == 0, nil
}

// deleteMaintenance deletes the NodeMaintenance of a Node that no longer exists.
func (r *Reconciler) deleteMaintenance(ctx context.Context, s *scope) (bool, error) {
	m := s.maintenance
	ctrl.LoggerFrom(ctx).Info("Deleting NodeMaintenance, because its Node no longer exists")
	return false, machinemaintenance.CompleteAndDelete(ctx, s.client, m, r.ManagementCluster)
}

// stopObserving stops observing Pods for the NodeMaintenance.
func (r *Reconciler) stopObserving(_ context.Context, s *scope) (bool, error) {
	r.Clusters.Release(s.request.Cluster, watchOwner(s.request))
	return true, nil
}

// patchMetadata patches the finalizers and the stage. It uses an optimistic lock, since a merge patch replaces the whole list of
// finalizers.
func (r *Reconciler) patchMetadata(ctx context.Context, s *scope, doing string) (bool, error) {
	original := s.before.DeepCopy()
	original.Status = s.maintenance.Status
	changed := s.maintenance.DeepCopy()
	if err := s.client.Patch(ctx, changed, client.MergeFromWithOptions(original, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, errors.Wrapf(answers.IgnoreDoesNotExist(err), "%s NodeMaintenance %s", doing, s.maintenance.Name)
	}
	status := s.maintenance.Status
	s.before = changed.DeepCopy()
	s.maintenance = changed
	s.maintenance.Status = status
	return true, nil
}
