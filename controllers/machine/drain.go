package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rules"
)

// admit decides whether the Machine's Node is drained at all.
func (r *Reconciler) admit(ctx context.Context, s *scope) (outcome, error) {
	facts, err := r.facts(ctx, s)
	if err != nil {
		return outcome{}, err
	}
	if err := r.findNode(ctx, s); err != nil {
		return outcome{}, err
	}
	if skip := machinedrain.Skip(facts); skip != machinedrain.NotSkipped {
		return outcome{verdict: release, reason: v1alpha1.ReasonSkipped, message: "Not drained: " + string(skip)}, nil
	}
	return outcome{}, nil
}

// findNode looks up the Node of a Machine without a nodeRef by its provider ID. As in Cluster API, it does not wait for the workload
// cluster: a Machine that never had a Node must be deleted nevertheless.
func (r *Reconciler) findNode(ctx context.Context, s *scope) error {
	if s.machine.Status.NodeRef.IsDefined() || s.machine.Spec.ProviderID == "" || !s.cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	remoteClient, err := r.Clusters.Client(ctx, s.clusterKey())
	if err != nil {
		if workload.IsNotConnected(err) {
			return nil
		}
		return err
	}
	nodes := &corev1.NodeList{}
	if err := remoteClient.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return errors.Wrapf(err, "listing the Nodes of Cluster %s", s.clusterKey())
	}
	s.machine.Status.NodeRef.Name = machinedrain.NodeNameOf(s.machine.Spec.ProviderID, nodes.Items)
	return nil
}

func (r *Reconciler) facts(ctx context.Context, s *scope) (machinedrain.Facts, error) {
	facts := machinedrain.Facts{Machine: s.machine, ClusterDeleting: !s.cluster.DeletionTimestamp.IsZero()}
	if facts.ClusterDeleting {
		return facts, nil
	}
	if err := r.countControlPlane(ctx, s, &facts); err != nil {
		return facts, err
	}
	if s.cluster.Spec.ControlPlaneRef.IsDefined() {
		controlPlane, err := r.referenced(ctx, s.cluster, s.cluster.Spec.ControlPlaneRef)
		if err != nil {
			return facts, errors.Wrapf(err, "getting the control plane of Cluster %s", s.clusterKey())
		}
		facts.ControlPlaneDeleting, facts.ControlPlaneExternal = controlPlane.deleting, controlPlane.external
	}
	infraMachine, err := r.referenced(ctx, s.machine, s.machine.Spec.InfrastructureRef)
	if err != nil {
		return facts, errors.Wrapf(err, "getting the infrastructure machine of Machine %s", klog.KObj(s.machine))
	}
	facts.InfraMachineDeleted = infraMachine.missing || infraMachine.deleting
	return facts, nil
}

// referenced is what the reconciler reads of an infrastructure or control plane object. Such objects cannot be watched: the roles of
// providers grant this provider only the verb get.
type referenced struct {
	by                          types.UID // a Machine or a Cluster
	missing, deleting, external bool
}

// Key implements cache.Entry.
func (f referenced) Key() string { return string(f.by) }

// referencedTTL is how long these facts are cached. It limits the reads to two for each Machine or Cluster and period, so that hundreds of
// concurrent drains do not load the API server of the management cluster.
const referencedTTL = 15 * time.Second

func (r *Reconciler) referenced(ctx context.Context, by client.Object, ref clusterv1.ContractVersionedObjectReference) (referenced, error) {
	facts := referenced{by: by.GetUID()}
	if seen, known := r.seen.Has(facts.Key()); known {
		return seen, nil
	}
	switch object, err := external.GetObjectFromContractVersionedRef(ctx, r.APIReader, ref, by.GetNamespace()); {
	case client.IgnoreNotFound(errors.Cause(err)) != nil:
		return facts, errors.Wrapf(err, "getting %s %s", ref.Kind, ref.Name)
	case err != nil:
		facts.missing = true
	default:
		facts.deleting, facts.external = !object.GetDeletionTimestamp().IsZero(), util.IsExternalManagedControlPlane(object)
	}
	r.seen.Add(facts)
	return facts, nil
}

func (r *Reconciler) countControlPlane(ctx context.Context, s *scope, facts *machinedrain.Facts) error {
	controlPlaneMachines := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, controlPlaneMachines, client.InNamespace(s.machine.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}, client.HasLabels{clusterv1.MachineControlPlaneLabel}); err != nil {
		return errors.Wrapf(err, "listing the control plane Machines of Cluster %s", s.clusterKey())
	}
	for i := range controlPlaneMachines.Items {
		if controlPlaneMachines.Items[i].DeletionTimestamp.IsZero() {
			facts.ControlPlaneMachines++
		}
	}
	return nil
}

// awaitServed waits until the workload cluster serves the CRDs that the manager installs.
func (r *Reconciler) awaitServed(_ context.Context, s *scope) (outcome, error) {
	unserved := r.Clusters.Unserved(s.clusterKey())
	if unserved == "" {
		return outcome{}, nil
	}
	return outcome{verdict: wait, blind: true, reason: v1alpha1.ReasonCRDNotServed, message: unserved, at: s.now.Add(unservedRetry)}, nil
}

// unservedRetry is the interval of checks whether the CRDs are served.
const unservedRetry = time.Second

// requestMaintenance creates the NodeMaintenance of the Node, or updates it to the current policy and drain rules. It waits until the
// workload cluster is reachable and invalid MachineDrainRules are fixed.
func (r *Reconciler) requestMaintenance(ctx context.Context, s *scope) (outcome, error) {
	remoteClient, err := r.Clusters.Client(ctx, s.clusterKey())
	if err != nil {
		return r.unreachable(ctx, s, err)
	}
	if waiting, lost := r.contact(ctx, s); lost {
		return waiting, nil
	}
	s.client, s.node = remoteClient, &corev1.Node{}
	if err := remoteClient.Get(ctx, types.NamespacedName{Name: s.machine.Status.NodeRef.Name}, s.node); err != nil {
		if apierrors.IsNotFound(err) {
			return outcome{verdict: release, reason: v1alpha1.ReasonSkipped, message: "Not drained: " + string(machinedrain.SkipNodeGone)}, nil
		}
		return r.unreachable(ctx, s, errors.Wrapf(err, "getting Node %s", s.machine.Status.NodeRef.Name))
	}
	if s.found, err = FindMaintenance(ctx, remoteClient, machinedrain.Identity{Cluster: s.clusterKey(), Machine: s.machine, Node: s.node}); err != nil {
		return r.unreachable(ctx, s, err)
	}
	if s.found.Name == "" {
		return outcome{verdict: wait, blind: true, reason: v1alpha1.ReasonMaintenanceNameTaken, message: s.found.TakenMessage()}, nil
	}
	if m := s.found.Maintenance; m != nil && m.Spec.Stage == v1alpha1.StageComplete { // another actor has completed it; stages only move forward
		return outcome{verdict: wait, blind: true, reason: v1alpha1.ReasonMachineDraining, message: "The NodeMaintenance was completed by somebody, and is made anew"}, completeAndDelete(ctx, remoteClient, m)
	}
	s.maintenance = s.found.Maintenance
	if s.turn, err = r.turn(ctx, s); err != nil {
		return r.unreachable(ctx, s, err)
	}
	s.mayDrain = s.turn.Now()
	desired, compiled, err := r.desired(ctx, s, machinedrain.DaemonSetPods(s.policy, s.maintenance))
	if err != nil {
		return outcome{}, err
	}
	if len(compiled.Problems) > 0 { // a running drain continues with the last valid rules
		waiting := outcome{verdict: wait, reason: v1alpha1.ReasonMachineDraining, message: "Waiting for a MachineDrainRule to be mended: " + compiled.Problems[0].String()}
		if waiting.blind = s.maintenance == nil; waiting.blind {
			return waiting, nil
		}
		return s.untilDrainDeadline(waiting), nil
	}
	if s.maintenance == nil {
		return r.create(ctx, s, desired)
	}
	return r.update(ctx, s, desired)
}

// completeAndDelete completes a NodeMaintenance that serves a Machine, and deletes it. It sets stage Complete first: the controller recreates a
// NodeMaintenance that is deleted in another stage, because its Machine still needs it.
func completeAndDelete(ctx context.Context, c client.Client, m *v1alpha1.NodeMaintenance) error {
	if m.Spec.Stage != v1alpha1.StageComplete {
		completed := m.DeepCopy()
		completed.Spec.Stage = v1alpha1.StageComplete
		if err := c.Patch(ctx, completed, client.MergeFrom(m)); err != nil {
			return errors.Wrapf(client.IgnoreNotFound(err), "completing NodeMaintenance %s", m.Name)
		}
	}
	if !m.DeletionTimestamp.IsZero() {
		return nil
	}
	err := c.Delete(ctx, m, client.Preconditions{UID: &m.UID})
	if apierrors.IsConflict(err) { // another one of that name
		return nil
	}
	return errors.Wrapf(client.IgnoreNotFound(err), "deleting NodeMaintenance %s", m.Name)
}

// create creates the NodeMaintenance.
func (r *Reconciler) create(ctx context.Context, s *scope, desired *v1alpha1.NodeMaintenance) (outcome, error) {
	if err := s.client.Create(ctx, desired); err != nil {
		if apierrors.IsAlreadyExists(err) { // either the cache is stale, or it belongs to another author
			return outcome{verdict: wait, blind: true, reason: v1alpha1.ReasonMachineDraining, message: "Drain requested", at: s.now.Add(existsRetry)}, nil
		}
		return r.unreachable(ctx, s, errors.Wrapf(err, "creating NodeMaintenance %s", desired.Name))
	}
	ctrl.LoggerFrom(ctx).Info("Requested the drain of the Node", "Node", klog.KObj(s.node), "NodeMaintenance", klog.KObj(desired))
	r.recorder.Eventf(s.machine, corev1.EventTypeNormal, eventDrainRequested, "Requested the drain of Node %s by NodeMaintenance %s", s.node.Name, desired.Name)
	if taken := s.found.TakenMessage(); taken != "" {
		r.recorder.Event(s.machine, corev1.EventTypeWarning, eventMaintenanceNameTaken, taken)
	}
	s.maintenance = desired
	return outcome{}, nil
}

// existsRetry is when to retry after a NodeMaintenance exists but is not in the cache. A NodeMaintenance of another author triggers no
// event for the Machine.
const existsRetry = time.Second

// update patches the NodeMaintenance to the desired state.
func (r *Reconciler) update(ctx context.Context, s *scope, desired *v1alpha1.NodeMaintenance) (outcome, error) {
	changed := s.maintenance.DeepCopy()
	if !machinedrain.Update(changed, desired) {
		return outcome{}, nil
	}
	if err := s.client.Patch(ctx, changed, client.MergeFromWithOptions(s.maintenance, client.MergeFromWithOptimisticLock{})); err != nil {
		return r.unreachable(ctx, s, errors.Wrapf(client.IgnoreNotFound(err), "updating NodeMaintenance %s", desired.Name))
	}
	s.maintenance = changed
	return outcome{}, nil
}

// desired returns the NodeMaintenance that the Machine's Node must have. It is valid only if the compiled rules have no Problems.
func (r *Reconciler) desired(ctx context.Context, s *scope, daemonSetPods v1alpha1.DaemonSetPodsPolicy) (*v1alpha1.NodeMaintenance, rules.Compiled, error) {
	compiled, err := CompileRules(ctx, r.Client, s.cluster, s.machine, daemonSetPods)
	if err != nil {
		return nil, rules.Compiled{}, err
	}
	return machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: r.ManagementCluster, Cluster: s.clusterKey(), Machine: s.machine, Node: s.node, Policy: s.policy, Rules: compiled.Rules,
		Name: s.found.Name, Stage: stageAt(s.turn),
	}), compiled, nil
}

// CompileRules compiles the drain rules for the Pods of a Machine's Node from the MachineDrainRules of its namespace.
func CompileRules(ctx context.Context, reader client.Reader, cluster *clusterv1.Cluster, machine *clusterv1.Machine, daemonSetPods v1alpha1.DaemonSetPodsPolicy) (rules.Compiled, error) {
	list := &clusterv1.MachineDrainRuleList{}
	if err := reader.List(ctx, list, client.InNamespace(machine.Namespace)); err != nil {
		return rules.Compiled{}, errors.Wrapf(err, "listing the MachineDrainRules of namespace %s", machine.Namespace)
	}
	return rules.Compile(rules.Input{
		Cluster:           rules.ClusterFacts{Labels: cluster.Labels},
		Machine:           rules.MachineFacts{Namespace: machine.Namespace, Labels: machine.Labels},
		DaemonSetPods:     daemonSetPods,
		MachineDrainRules: list.Items,
	}), nil
}

// contact returns whether contact with the workload cluster is lost: it does not answer the health probes of the ClusterCache. The
// ClusterCache closes such a connection within about a minute. Until then, watches deliver no events and their caches are stale.
func (r *Reconciler) contact(ctx context.Context, s *scope) (waiting outcome, lost bool) {
	state := r.Clusters.HealthState(ctx, s.clusterKey())
	if state.ConsecutiveFailures == 0 || s.now.Sub(state.LastProbeSuccessTime) < probeFailureWindow {
		if conditions.GetReason(s.machine, v1alpha1.MachineNodeMaintenance) == v1alpha1.ReasonWaitingForWorkloadCluster {
			r.Clusters.RestartWatches(s.clusterKey())
		}
		return outcome{}, false
	}
	waiting = waitingForCluster(state)
	waiting.at = s.now.Add(contactRetry)
	return waiting, true
}

const (
	// contactRetry is the interval of checks whether contact is restored. A successful probe triggers no event.
	contactRetry = 5 * time.Second
	// probeFailureWindow is the maximum age of the last successful probe. Probes run every 10 s, and a single failed probe may be a short
	// overload. The ClusterCache triggers an event when the window has passed.
	probeFailureWindow = 15 * time.Second
)

func waitingForCluster(state clustercache.HealthCheckingState) outcome {
	waiting := outcome{verdict: wait, blind: true, reason: v1alpha1.ReasonWaitingForWorkloadCluster, message: "Waiting for a connection to the workload cluster"}
	if last := state.LastProbeSuccessTime; !last.IsZero() {
		waiting.message += fmt.Sprintf(" (last reached at %s)", last.UTC().Format(time.RFC3339))
	}
	return waiting
}

// unreachable turns the error of a request to the workload cluster into an outcome. Without a connection, the step waits for the next one.
// A request without a response is retried after contactRetry instead of with the backoff of errors.
func (r *Reconciler) unreachable(ctx context.Context, s *scope, err error) (outcome, error) {
	answered := apierrors.ReasonForError(err) != metav1.StatusReasonUnknown
	if workload.KindNotServed(err) {
		r.Clusters.RequestCheck(s.clusterKey())
	}
	if answered && !workload.IsNotConnected(err) || workload.IsPaused(err) {
		return outcome{}, err
	}
	waiting := waitingForCluster(r.Clusters.HealthState(ctx, s.clusterKey()))
	if !workload.IsNotConnected(err) {
		ctrl.LoggerFrom(ctx).V(2).Info("The workload cluster does not answer", "error", err.Error())
		waiting.at = s.now.Add(contactRetry)
	}
	return waiting, nil
}
