package machine

import (
	"cmp"
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/history"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// admit decides whether the Machine's Node is drained at all, and waits while hooks of other owners hold the drain. Until then, its Node is
// not looked up: what would be found or not found now does not count later. It records the hold before it reads what may take long. If it
// cannot be decided, only a drain that has begun continues, see continueUnadmitted.
func (r *Reconciler) admit(ctx context.Context, s *scope) (outcome, error) {
	if s.HeldByHooks {
		if err := r.recordClock(ctx, s); err != nil {
			return outcome{}, err
		}
	}
	if waiting, err := r.confirmClusterDeletion(ctx, s); err != nil || waiting.action == wait {
		return waiting, err
	}
	facts, err := r.facts(ctx, s)
	if err != nil && !s.HeldByHooks && s.machine.Status.NodeRef.IsDefined() {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to find out whether the Node must be drained. Only a drain that has begun continues")
		s.unadmitted = err
		return outcome{}, nil
	}
	if err != nil {
		return outcome{}, err
	}
	var waiting outcome
	if s.HeldByHooks {
		waiting = r.awaitHooks(s)
	} else if waiting, err = r.findNode(ctx, s); err != nil {
		return outcome{}, err
	}
	facts.NodeUnknown = waiting.action == wait && s.machine.Spec.ProviderID != ""
	if skip := machinedrain.Skip(facts); skip != machinedrain.NotSkipped {
		return s.skip(skip), nil
	}
	return waiting, nil
}

// continueUnadmitted returns why it is not known whether the Node is drained at all, unless a drain has begun: that one continues, with its
// final eviction attempts and grace periods. No drain begins without that knowledge, and none is skipped, not even because of the Node: the
// Machine is held, with the error as its reason, until its drain timeout.
func (s *scope) continueUnadmitted() error {
	if m := s.found.Maintenance; m == nil || m.Spec.Stage != v1alpha1.StageDrain || machinedrain.SkipNode(s.node) != machinedrain.NotSkipped {
		return s.unadmitted
	}
	return nil
}

// confirmClusterDeletion asks the API server whether the Cluster of a Machine is being deleted, if the cache says so: after a restore of
// the management cluster, its deletion may be undone. It waits until the cache has a Cluster that is not being deleted.
func (r *Reconciler) confirmClusterDeletion(ctx context.Context, s *scope) (outcome, error) {
	if s.cluster.DeletionTimestamp.IsZero() {
		return outcome{}, nil
	}
	live, err := r.liveCluster(ctx, s)
	if err != nil || live == nil || !live.DeletionTimestamp.IsZero() {
		return outcome{}, err
	}
	s.blind = true // a block that is known does not end
	message := "Waiting for the watch of Clusters: Cluster " + s.clusterKey().String() + " is no longer being deleted"
	return outcome{action: wait, reason: v1alpha1.ReasonMachineDraining, message: message, at: s.now.Add(observeRetry)}, nil
}

// skip ends the drain of a Machine whose Node is not drained.
func (s *scope) skip(why machinedrain.SkipReason) outcome {
	s.drainOver, s.volumesOver = why.Overrules()
	return outcome{action: release, reason: v1alpha1.ReasonSkipped, message: history.NotDrained + string(why)}
}

// findNode looks up the Node of a Machine without a nodeRef by its provider ID. It waits for the connection to the workload cluster for a
// limited time, which begins with the first failed attempt to connect. While the status of the Cluster does not say that its infrastructure
// is provisioned, no attempt is made, and only the drain timeout limits the wait. Such a status was lost, for example in clusterctl move:
// without infrastructure, the Machine would have no provider ID.
func (r *Reconciler) findNode(ctx context.Context, s *scope) (outcome, error) {
	if s.machine.Status.NodeRef.IsDefined() || s.machine.Spec.ProviderID == "" || !s.cluster.DeletionTimestamp.IsZero() {
		return outcome{}, nil
	}
	remoteClient, err := r.Clusters.Client(ctx, s.clusterKey())
	if err != nil {
		deadline := s.now.Add(contactRetry)
		if workload.IsNotConnected(err) && r.hasTriedToConnect(ctx, s) { // what has blocked the Machine before does not count
			remembered := r.memoryOf(s.machine)
			remembered.unconnected = cmp.Or(remembered.unconnected, s.now)
			if deadline = machinedrain.NodeLookupDeadline(s.machine, remembered.unconnected, r.failedContact(ctx, s)); s.exceeds(&deadline) {
				return outcome{}, nil
			}
		}
		waiting, err := r.unreachable(ctx, s, err)
		waiting.message += ". The Node is unknown: the Machine has a provider ID and no nodeRef"
		return s.requeueBy(&deadline, waiting), err
	}
	if err := r.findNodeIn(ctx, s, remoteClient); err != nil {
		return r.unreachable(ctx, s, err)
	}
	return outcome{}, nil
}

// findNodeIn looks up the Node by the provider ID of the Machine. If the client has no such Node, the API server decides: the watch may not
// have delivered the Node or its provider ID yet.
func (r *Reconciler) findNodeIn(ctx context.Context, s *scope, cached client.Client) error {
	live, err := r.Clusters.UncachedClient(ctx, s.clusterKey())
	if err != nil {
		return err
	}
	for _, from := range []client.Client{cached, live} {
		nodes := &corev1.NodeList{}
		if err := from.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
			return errors.Wrapf(err, "listing the Nodes of Cluster %s", s.clusterKey())
		}
		if s.machine.Status.NodeRef.Name = machinedrain.NodeNameOf(s.machine.Spec.ProviderID, nodes.Items); s.machine.Status.NodeRef.Name != "" {
			s.isNodeLookedUp = true
			return nil
		}
	}
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
	s.machine.Spec.ProviderID = cmp.Or(s.machine.Spec.ProviderID, infraMachine.providerID) // not yet copied; as Cluster API, see findNode
	return facts, nil
}

// referenced is what the reconciler reads of an infrastructure or control plane object, or of a kubeconfig Secret. Such objects cannot be
// watched: the roles grant this provider only the verb get.
type referenced struct {
	missing, deleting, external bool
	providerID                  string // of the infrastructure machine
	problem                     string // of the kubeconfig
	failure                     error  // why the object could not be read
}

// referenced reads the object that ref names, or returns what was read of it at most pollInterval ago, or the error of a read at most
// contactRetry ago. So each Machine or Cluster causes at most two reads in an interval, of the CRD and of the object, and hundreds of
// concurrent drains do not load the API server of the management cluster.
func (r *Reconciler) referenced(ctx context.Context, by client.Object, ref clusterv1.ContractVersionedObjectReference) (referenced, error) {
	namespace := types.NamespacedName{Namespace: by.GetNamespace()} // the Machines of its Clusters share the limit
	if seen, known := r.references.Get(namespace, by.GetUID()); known {
		return seen, seen.failure
	}
	var facts referenced
	switch object, err := external.GetObjectFromContractVersionedRef(ctx, r.APIReader, ref, by.GetNamespace()); {
	case answers.DoesNotExist(err):
		facts.missing = true
	case err != nil:
		facts.failure = errors.Wrapf(err, "getting %s %s", ref.Kind, ref.Name)
		r.references.Set(namespace, by.GetUID(), facts, contactRetry)
		return facts, facts.failure
	default:
		facts.deleting, facts.external = !object.GetDeletionTimestamp().IsZero(), util.IsExternalManagedControlPlane(object)
		facts.providerID = machinedrain.ProviderIDOf(object)
	}
	r.references.Set(namespace, by.GetUID(), facts, pollInterval)
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
