package machine

import (
	"cmp"
	"context"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
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
)

// eventHookRemoved on a Machine means that another actor has removed the hook during the drain.
const eventHookRemoved = "NodeMaintenanceHookRemoved"

// eventHookReleased on a Machine means that the hook has been removed after the deletion of the Machine. The message says why.
const eventHookReleased = "NodeMaintenanceHookReleased"

// patchMachine patches the Machine with a change, which returns whether it changes anything. The optimistic lock makes the patch fail if
// the Machine has been deleted in the meantime: such a Machine must not get the hook. See also withoutLag.
func (r *Reconciler) patchMachine(ctx context.Context, s *scope, doing string, change func(*clusterv1.Machine) bool) error {
	changed := s.machine.DeepCopy()
	if !change(changed) {
		return nil
	}
	if !r.mayPatch(s) {
		return errors.Wrapf(errRestored, "%s of Machine %s", doing, klog.KObj(s.machine))
	}
	err := r.withoutLag(ctx, s, func() error {
		return r.Client.Patch(ctx, changed, client.MergeFromWithOptions(s.machine, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return errors.Wrapf(answers.IgnoreDoesNotExist(err), "%s of Machine %s", doing, klog.KObj(s.machine))
	}
	s.machine = changed
	return nil
}

// withoutLag writes a Machine with an optimistic lock. After a conflict, it asks the API server for the Machine, and writes again if only
// the reports of Cluster API have changed: Cluster API repeats them while it waits for the hook, and if the watch lags behind them, the
// version of the cache is outdated each time.
func (r *Reconciler) withoutLag(ctx context.Context, s *scope, write func() error) error {
	err := write()
	if !answers.IsConflict(err) {
		return err
	}
	live, readErr := r.liveMachine(ctx, s)
	if readErr != nil || live == nil || !machinedrain.OnlyReportsDiffer(s.machine, live) {
		return err
	}
	s.machine.ResourceVersion = live.ResourceVersion
	return write()
}

// liveMachine returns the Machine as the API server has it, nil if it does not exist. The role permits no get of Machines.
func (r *Reconciler) liveMachine(ctx context.Context, s *scope) (*clusterv1.Machine, error) {
	machines := &clusterv1.MachineList{}
	named := client.MatchingFields{metav1.ObjectNameField: s.machine.Name}
	if err := r.APIReader.List(ctx, machines, client.InNamespace(s.machine.Namespace), named); err != nil {
		return nil, errors.Wrapf(err, "reading Machine %s", klog.KObj(s.machine))
	}
	if len(machines.Items) != 1 || machines.Items[0].UID != s.machine.UID {
		return nil, nil //nolint:nilnil // it does not exist
	}
	return &machines.Items[0], nil
}

const (
	// patchBurst is how often the manager may change the annotations of a running Machine at once, and patchInterval how often on average.
	patchBurst    = 30
	patchInterval = 10 * time.Second
)

// errRestored means that the manager has changed the annotations of a Machine too often: probably, another actor restores them each time.
var errRestored = errors.New("another actor restores the annotations of this provider each time; remove them from the template of the MachineSet or " +
	"MachineDeployment, or from where else they come")

// mayPatch limits how often the annotations of a Machine that is not being deleted are changed. Cluster API copies those of the template of
// a MachineSet to its Machines again and again, and at once after each change. It does not for a deleted Machine.
func (r *Reconciler) mayPatch(s *scope) bool {
	if !s.machine.DeletionTimestamp.IsZero() {
		return true
	}
	limiter, _ := r.patches.LoadOrStore(client.ObjectKeyFromObject(s.machine),
		flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(1/patchInterval.Seconds()), patchBurst, r.Clock))
	return limiter.(flowcontrol.PassiveRateLimiter).TryAccept() //nolint:forcetypeassert // nothing else is stored
}

// leave ends the responsibility for a Machine that the watch filter does not select. Cluster API or another manager drains the Node.
func (r *Reconciler) leave(ctx context.Context, s *scope, responsibility machinedrain.Responsibility) error {
	if responsibility != machinedrain.HandsOver {
		removeUnended(client.ObjectKeyFromObject(s.machine))
	}
	if err := r.findCluster(ctx, s); err != nil || machinedrain.IsPaused(s.cluster, s.machine) {
		return err
	}
	switch responsibility {
	case machinedrain.Leaves:
		return r.leaveRunning(ctx, s)
	case machinedrain.HandsOver:
		return r.handOver(ctx, s)
	default:
		return r.leaveWithoutHook(ctx, s)
	}
}

// leaveRunning removes the hook of a running Machine that has left the watch filter, and ends its maintenance before, see endStranded.
func (r *Reconciler) leaveRunning(ctx context.Context, s *scope) error {
	change := machinedrain.RemoveHook
	switch ended, err := r.endStranded(ctx, s); {
	case err != nil:
		return err
	case ended:
		change = machinedrain.EndMaintenanceAndRemoveHook
	}
	r.forget(client.ObjectKeyFromObject(s.machine))
	return r.patchMachine(ctx, s, "removing the hook", change)
}

// leaveWithoutHook is leave for a Machine that does not have the hook of this manager. It ends what leaveRunning has left until later. What
// the maintenance has set on the Machine is left to the manager that the label names.
func (r *Reconciler) leaveWithoutHook(ctx context.Context, s *scope) error {
	if machinedrain.HasHook(s.machine) {
		return nil // another manager drains the Node
	}
	if r.Filter.MayStrand(s.cluster, s.machine) {
		if s.machine.Labels[clusterv1.WatchLabel] == "" { // there is no such manager
			return r.leaveRunning(ctx, s)
		}
		switch stranded, err := r.findStranded(ctx, s); {
		case err != nil && !workload.IsNotConnected(err):
			return err
		case stranded:
			return r.completeMaintenance(ctx, s)
		}
	}
	if err := r.patchMachine(ctx, s, "removing exclude annotations", machinedrain.RemoveExcludes); !errors.Is(err, errRestored) {
		return err
	}
	return nil
}

// endStranded ends the maintenance of a running Machine that has left the watch filter as if its stage annotation had been removed, unless
// another manager or an update in place continues it. It returns false if it has not: without a connection, leave does it later.
func (r *Reconciler) endStranded(ctx context.Context, s *scope) (ended bool, err error) {
	if !r.Filter.MayStrand(s.cluster, s.machine) {
		return false, nil
	}
	stranded, err := r.findStranded(ctx, s)
	switch {
	case workload.IsNotConnected(err):
		return false, nil
	case err != nil:
		return false, err
	case stranded:
		if err := r.endMaintenance(ctx, s); err != nil {
			return false, err
		}
	}
	return true, r.setCondition(ctx, s, metav1.Condition{})
}

// findStranded reports whether a Machine for which WatchFilter.MayStrand is true has a NodeMaintenance that must be completed.
func (r *Reconciler) findStranded(ctx context.Context, s *scope) (bool, error) {
	if delivered, err := r.areLabelsDelivered(ctx, s); err != nil || !delivered { // the Cluster may just have left the filter, too
		return false, errors.Wrap(cmp.Or(err, errLabelsNotDelivered), "finding a NodeMaintenance that no other manager can end")
	}
	if err := r.findMaintenance(ctx, s, ""); err != nil {
		return false, err
	}
	return s.maintenance != nil && s.hasLostPurpose(), nil
}

// errLabelsNotDelivered means that the watch of Clusters has not delivered the labels that the API server has.
var errLabelsNotDelivered = errors.New("the watch has not delivered the labels of the Cluster")

// handOver writes to the condition which manager must drain the Machine: once for each label, and again after a restart, because the other
// manager overwrites it. The present condition does not show whether that manager runs: it may be from before the label was changed.
func (r *Reconciler) handOver(ctx context.Context, s *scope) error {
	key, to := client.ObjectKeyFromObject(s.machine), handedOver{uid: s.machine.UID, label: s.machine.Labels[clusterv1.WatchLabel]}
	r.forget(key)
	if before, _ := r.handedOver.Load(key); before == to {
		if isHandedOver(s.machine) { // the other manager has not begun
			observeUnended(s, v1alpha1.ReasonHandedOver)
		}
		return nil
	}
	if err := r.setCondition(ctx, s, waitingCondition(v1alpha1.ReasonHandedOver, r.Filter.HandedOverMessage(s.machine))); err != nil {
		return err
	}
	r.handedOver.Store(key, to)
	observeUnended(s, v1alpha1.ReasonHandedOver)
	return nil
}

// handedOver is a Machine that another manager must drain, and the label that says which.
type handedOver struct {
	uid   types.UID
	label string
}

// release removes the hook of a deleted Machine. The same patch prevents Cluster API from repeating a drain that has completed or timed out
// here.
func (r *Reconciler) release(ctx context.Context, s *scope, result outcome) (reconcile.Result, error) {
	r.released.add(s, result)
	if err := r.withoutLag(ctx, s, func() error { return r.removeHook(ctx, s, result) }); err != nil {
		return reconcile.Result{}, err
	}
	ctrl.LoggerFrom(ctx).Info("Removed the hook of the Machine", "reason", result.reason, "message", result.message)
	eventType := corev1.EventTypeNormal
	if result.reason == v1alpha1.ReasonTimedOut {
		eventType = corev1.EventTypeWarning
	}
	r.events.Event(s.machine, eventType, eventHookReleased, result.message)
	recordReleaseMetrics(s, result)
	r.recordEnd(ctx, s, result)
	r.forget(client.ObjectKeyFromObject(s.machine))
	return reconcile.Result{}, nil
}

// removeHook writes the result to the Machine's condition, and then removes the hook: if the condition has no result, another actor has
// removed it. Each of the two writes fails if the Machine has changed: between them, this process may have stood still while another one
// became the leader.
func (r *Reconciler) removeHook(ctx context.Context, s *scope, result outcome) error {
	resourceVersion, err := r.reportResult(ctx, s, result)
	switch {
	case answers.IsConflict(err):
		return err
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Failed to report the result of the drain") // the Machine is released nevertheless
		resourceVersion = s.machine.ResourceVersion
	default:
		reported, present := machinedrain.ResultCondition(result.reason, result.message), conditions.Get(s.machine, v1alpha1.MachineNodeMaintenance)
		reported.LastTransitionTime = machinedrain.TransitionTime(present, reported, s.now) // as written: a repeated report changes nothing
		conditions.Delete(s.machine, reported.Type)                                         // Set keeps the time of one with the same status
		conditions.Set(s.machine, reported)
	}
	changed, before := s.machine.DeepCopy(), s.machine.DeepCopy()
	machinedrain.Release(changed, s.drainOver, s.volumesOver)
	before.UID = "" // so that the patch has the UID, and fails for another Machine with the name
	before.ResourceVersion = resourceVersion
	err = r.Client.Patch(ctx, changed, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	return errors.Wrapf(answers.IgnoreDoesNotExist(err), "removing the hook of Machine %s", klog.KObj(s.machine))
}

// reconcileWithoutHook completes the NodeMaintenance of a deleted Machine whose drain does not continue: another actor has removed the
// hook, and Cluster API drains the Node, or the manager has removed it because the Node is not drained. The NodeMaintenance is deleted when
// the Node no longer exists.
func (r *Reconciler) reconcileWithoutHook(ctx context.Context, s *scope) (err error) {
	if s.client, err = r.Clusters.Client(ctx, s.clusterKey()); err == nil {
		err = r.findWithoutHook(ctx, s)
	}
	switch {
	case machinedrain.HookRemoved(s.machine, s.policy, s.Maintenance):
		if reportErr := r.reportHookRemoved(ctx, s); reportErr != nil {
			return reportErr
		}
	case machinedrain.WasSkipped(s.machine):
		if s.maintenance == nil || !machinedrain.ContinuesAfterSkip(s.maintenance, s.machine, r.Maintenances.ManagementCluster) {
			return err
		}
	default:
		r.continueDrain(s)
		return err // until the NodeMaintenance is read, the drain is suspended, and nothing else may show that the Machine had the hook
	}
	if err != nil || s.maintenance == nil {
		return err // the next connection triggers a reconciliation
	}
	return machinemaintenance.Complete(ctx, s.client, s.maintenance, r.Maintenances.ManagementCluster)
}

// findWithoutHook finds the Node and the NodeMaintenance of a Machine without the hook. The Node of one without a nodeRef is that which its
// NodeMaintenance names: neither its provider ID nor its infrastructure machine may exist any more.
func (r *Reconciler) findWithoutHook(ctx context.Context, s *scope) error {
	if !s.machine.Status.NodeRef.IsDefined() {
		all := func(*v1alpha1.NodeMaintenance) bool { return true }
		named, err := r.Maintenances.List(ctx, s.client, s.clusterKey(), []clusterv1.Machine{*s.machine}, all)
		if err != nil {
			return err
		}
		s.machine.Status.NodeRef.Name = machinedrain.NodeName(s.machine, named[client.ObjectKeyFromObject(s.machine)])
	}
	found, node, err := machinemaintenance.Find(ctx, s.client, s.clusterKey(), s.machine)
	if err == nil {
		s.found, s.node = found, node
		s.observe(found.Maintenance)
	}
	return err
}

// reportHookRemoved reports that another actor has removed the hook of the Machine during the drain. If this was not reported before the
// deletion of the Cluster, the manager has removed the hook because of that deletion, in reconcileRunning.
func (r *Reconciler) reportHookRemoved(ctx context.Context, s *scope) error {
	found := conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance)
	if found != v1alpha1.ReasonHookRemoved && !s.cluster.DeletionTimestamp.IsZero() {
		skipped := s.skip(machinedrain.SkipClusterDeleting)
		return r.setCondition(ctx, s, machinedrain.ResultCondition(skipped.reason, skipped.message))
	}
	if found != v1alpha1.ReasonHookRemoved {
		ctrl.LoggerFrom(ctx).Info("Another actor removed the hook of the Machine during the drain")
		r.events.Event(s.machine, corev1.EventTypeWarning, eventHookRemoved, machinedrain.HookRemovedMessage())
	}
	if err := r.setCondition(ctx, s, waitingCondition(v1alpha1.ReasonHookRemoved, machinedrain.HookRemovedMessage())); err != nil {
		return err
	}
	if found != v1alpha1.ReasonHookRemoved {
		r.recordEnd(ctx, s, outcome{reason: v1alpha1.ReasonHookRemoved, message: machinedrain.HookRemovedMessage()})
	}
	return nil
}
