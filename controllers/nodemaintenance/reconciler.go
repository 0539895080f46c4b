package nodemaintenance

import (
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/controllers/writelimit"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
	"github.com/capnm/cluster-api-node-maintenance/drain/plan"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// Reconciler reconciles NodeMaintenances.
type Reconciler struct {
	Clusters *workload.Clusters
	Clock    clock.PassiveClock
	// ManagementCluster identifies the management cluster that this manager serves, see
	// v1alpha1.OwnerManagementClusterAnnotation.
	ManagementCluster string
	// Machines reads the management cluster's Machines.
	Machines client.Reader
	// NodeAgent is the feature gate that lets agents on Nodes evacuate static Pods.
	NodeAgent bool

	controller controller.TypedController[workload.Request]
	statuses   writelimit.Limiter[workload.Request] // limits the rate of status patches that only report progress
	created    creations
	written    *expectations.Objects[*corev1.Node]
	conflicts  conflicts
}

// SetupWithManager adds the reconciler to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.TypedOptions[workload.Request]) error {
	r.written = expectations.New[*corev1.Node](ctx)
	var err error
	r.controller, err = r.Clusters.NewController(mgr, "nodemaintenance", r, options, r.enqueue)
	return err
}

// Watches returns the watches of a workload cluster's NodeMaintenances, Nodes and Evacuations.
func (r *Reconciler) Watches(cluster types.NamespacedName) []clustercache.Watcher {
	return []clustercache.Watcher{
		workload.Watch("nodemaintenance-NodeMaintenances", r.controller, &v1alpha1.NodeMaintenance{}, workload.EnqueueObjects(cluster, r.itselfAndNeighbours(cluster)),
			predicate.TypedResourceVersionChangedPredicate[*v1alpha1.NodeMaintenance]{}),
		workload.Watch("nodemaintenance-Nodes", r.controller, &corev1.Node{}, workload.EnqueueObjects(cluster, func(ctx context.Context, node *corev1.Node) []types.NamespacedName {
			return r.maintenancesOf(ctx, cluster, node.Name, node)
		}), nodeChanged{}),
		workload.Watch("nodemaintenance-Evacuations", r.controller, &v1alpha1.Evacuation{}, workload.EnqueueObjects(cluster, func(ctx context.Context, e *v1alpha1.Evacuation) []types.NamespacedName {
			return r.maintenancesOf(ctx, cluster, e.Annotations[v1alpha1.EvacuationNodeAnnotation], nil)
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

	nodes     []*corev1.Node             // the selected Nodes
	refused   map[string]error           // errors of Nodes that could not be cordoned, by Node name
	others    []v1alpha1.NodeMaintenance // a superset of those that share Nodes with this one; objects of the cache, read-only
	drainedBy map[string][]*corev1.Node  // Nodes of the others that are in stage Drain, by NodeMaintenance name

	served    *ownerMachine        // nil: it serves no Machine of this management cluster
	selection *nodeselection.Facts // nil in stage Complete

	// In stage Drain, once the Pods are observed:
	decision    *plan.MaintenanceDecision
	pods        map[string][]podView // by Node
	evacuations map[types.UID]*v1alpha1.Evacuation
	notCreated  map[types.UID]error // errors of Evacuations that could not be created, by Pod
	requeueAt   time.Time
	waiting     string // what the drain waits for before it can evaluate Pods
	ruleProblem []rules.Problem
	lastCall    *finalAttempt // nil: the drain has no timeout
}

// step is one step of a reconciliation. If it returns done = false, the reconciliation ends. The event of the object that the step has
// written, or waits for, starts the next reconciliation.
type step func(context.Context, *scope) (done bool, err error)

// Reconcile reconciles one NodeMaintenance:
//
//	Idle      ─► report
//	Cordon    ─► hold (finalizer) ─► cordon ─► report
//	Drain     ─► hold ─► cordon ─► evacuate the targets ─► delete the remaining Pods before the drain timeout, if requested ─► report
//	Complete  ─► withdraw Evacuations ─► uncordon ─► report ─► remove the finalizer
//
// It changes nothing while the Machine that the NodeMaintenance serves is paused. It does not restore the Node of a Machine that is being
// deleted, not even in stage Complete. Before the report, it releases Nodes that are no longer selected, as in stage Complete. After the
// report, it updates the conditions of the Nodes.
func (r *Reconciler) Reconcile(ctx context.Context, request workload.Request) (reconcile.Result, error) {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx, "Cluster", klog.KRef(request.Cluster.Namespace, request.Cluster.Name), "NodeMaintenance", klog.KRef("", request.Object.Name)))
	s := &scope{request: request, before: &v1alpha1.NodeMaintenance{}, now: r.Clock.Now()}
	err := r.reconcile(ctx, s)
	if !workload.IsNotConnected(err) && !workload.IsPaused(err) {
		r.Clusters.Failures.Record(request, err, s.now)
	}
	if err != nil || s.requeueAt.IsZero() {
		return workload.Result(err)
	}
	return reconcile.Result{RequeueAfter: max(s.requeueAt.Sub(s.now), time.Millisecond)}, nil
}

func (r *Reconciler) reconcile(ctx context.Context, s *scope) (err error) {
	request := s.request
	if s.client, err = r.Clusters.Client(ctx, request.Cluster); err != nil {
		return err
	}
	if err := s.client.Get(ctx, request.Object, s.before); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.statuses.Remove(request)
			r.created.remove(request)
			if _, err = r.Clusters.Observe(ctx, request.Cluster, owner(request)); err == nil {
				err = r.clearNodeConditions(ctx, s)
			}
			return err
		}
		return errors.Wrapf(err, "getting NodeMaintenance %s", request.Object.Name)
	}
	s.maintenance = s.before.DeepCopy()
	for _, step := range r.steps(s.maintenance) {
		if done, err := step(ctx, s); err != nil || !done {
			return err
		}
	}
	return nil
}

// steps returns the steps of a NodeMaintenance. It checks the deletionTimestamp first, so that the event of the removal of our finalizer
// does not cordon the Nodes again.
func (r *Reconciler) steps(m *v1alpha1.NodeMaintenance) []step {
	if !m.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(m, v1alpha1.MaintenanceCompletionFinalizer) {
			return []step{r.stopObserving}
		}
		return []step{r.findMachine, r.awaitResume, r.selectNodes, r.completeDeleted, r.withdraw, r.uncordon, r.releaseDeselectedNodes, r.report, r.updateNodeConditions, r.removeFinalizer}
	}
	switch m.Spec.Stage {
	case v1alpha1.StageCordon:
		return []step{r.findMachine, r.awaitResume, r.selectNodes, r.deleteWithoutNode, r.addFinalizer, r.cordon, r.releaseDeselectedNodes, r.checkSelection, r.report, r.updateNodeConditions}
	case v1alpha1.StageDrain:
		return []step{r.findMachine, r.awaitResume, r.selectNodes, r.deleteWithoutNode, r.addFinalizer, r.cordon, r.evacuate, r.deleteRemainingPods, r.releaseDeselectedNodes, r.checkSelection, r.report, r.updateNodeConditions}
	case v1alpha1.StageComplete:
		return []step{r.findMachine, r.awaitResume, r.selectNodes, r.deleteWithoutNode, r.keepNodeOfDeletedMachine, r.addFinalizer, r.withdraw, r.uncordon, r.releaseDeselectedNodes, r.report, r.updateNodeConditions, r.stopObserving}
	default:
		return []step{r.findMachine, r.awaitResume, r.selectNodes, r.deleteWithoutNode, r.checkSelection, r.report, r.updateNodeConditions}
	}
}

// owner returns the name under which a NodeMaintenance subscribes to the Pods of Nodes.
func owner(request workload.Request) string { return "NodeMaintenance/" + request.Object.Name }

// addFinalizer adds the finalizer before the first side effect.
func (r *Reconciler) addFinalizer(ctx context.Context, s *scope) (bool, error) {
	if !controllerutil.AddFinalizer(s.maintenance, v1alpha1.MaintenanceCompletionFinalizer) {
		return true, nil
	}
	return r.patchMetadata(ctx, s, "holding")
}

// completeDeleted moves a deleted NodeMaintenance to stage Complete. If the NodeMaintenance serves a Machine and is deleted before the
// Node, it only removes the finalizer: the NodeMaintenance is recreated at once, and the Node must stay cordoned in between.
func (r *Reconciler) completeDeleted(ctx context.Context, s *scope) (bool, error) {
	if s.maintenance.Spec.Stage == v1alpha1.StageComplete && !s.keepsNode() {
		return true, nil
	}
	if _, serves := s.maintenance.Annotations[v1alpha1.OwnerMachineAnnotation]; serves {
		_, err := r.removeFinalizer(ctx, s)
		return false, err
	}
	s.maintenance.Spec.Stage = v1alpha1.StageComplete
	return r.patchMetadata(ctx, s, "completing")
}

// deleteWithoutNode deletes a NodeMaintenance that served a Machine of this management cluster and whose Node no longer exists.
func (r *Reconciler) deleteWithoutNode(ctx context.Context, s *scope) (bool, error) {
	m := s.maintenance
	if m.Annotations[v1alpha1.OwnerManagementClusterAnnotation] != r.ManagementCluster || m.Annotations[v1alpha1.NodeUIDAnnotation] == "" || len(s.nodes) > 0 {
		return true, nil
	}
	ctrl.LoggerFrom(ctx).Info("The Node no longer exists, deleting its NodeMaintenance")
	return false, machinemaintenance.CompleteAndDelete(ctx, s.client, m, r.ManagementCluster)
}

// removeFinalizer removes the finalizer, after the Nodes have been restored.
func (r *Reconciler) removeFinalizer(ctx context.Context, s *scope) (bool, error) {
	if !controllerutil.RemoveFinalizer(s.maintenance, v1alpha1.MaintenanceCompletionFinalizer) {
		return true, nil
	}
	if _, err := r.patchMetadata(ctx, s, "releasing"); err != nil {
		return false, err
	}
	return r.stopObserving(ctx, s)
}

// stopObserving stops observing Pods for the NodeMaintenance.
func (r *Reconciler) stopObserving(ctx context.Context, s *scope) (bool, error) {
	_, err := r.Clusters.Observe(ctx, s.request.Cluster, owner(s.request))
	return err == nil, err
}

// patchMetadata patches the finalizers and the stage. It uses an optimistic lock, since a merge patch replaces the whole list of finalizers.
func (r *Reconciler) patchMetadata(ctx context.Context, s *scope, doing string) (bool, error) {
	original := s.before.DeepCopy()
	original.Status = s.maintenance.Status
	changed := s.maintenance.DeepCopy()
	if err := s.client.Patch(ctx, changed, client.MergeFromWithOptions(original, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, errors.Wrapf(client.IgnoreNotFound(err), "%s NodeMaintenance %s", doing, s.maintenance.Name)
	}
	status := s.maintenance.Status
	s.before = changed.DeepCopy()
	s.maintenance = changed
	s.maintenance.Status = status
	return true, nil
}
