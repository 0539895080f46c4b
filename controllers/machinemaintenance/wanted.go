package machinemaintenance

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/setaside"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
	"github.com/capnm/cluster-api-node-maintenance/drain/rollout"
)

// Wanted returns the stage of the NodeMaintenance that the manager keeps for a Machine, see machinedrain.WantedStage.
func (q *Requester) Wanted(ctx context.Context, machine *clusterv1.Machine, now time.Time) (v1alpha1.NodeMaintenanceStage, error) {
	cluster := &clusterv1.Cluster{}
	switch err := q.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}, cluster); {
	case apierrors.IsNotFound(err):
		return machinedrain.WantedStage(machine, nil, nil, ""), nil
	case err != nil:
		return "", errors.Wrapf(err, "getting Cluster %s", klog.KRef(machine.Namespace, machine.Spec.ClusterName))
	}
	policies, err := q.policies(ctx, machine.Namespace)
	if err != nil {
		return "", err
	}
	outdated, err := q.outdatedStage(ctx, cluster, machine, policies, now)
	if err != nil {
		return "", err
	}
	selection, _ := q.PolicyFor(machine, cluster, policies)
	if selection.Unread != "" {
		return machinedrain.StageOfUnread(machine, cluster), nil
	}
	return machinedrain.WantedStage(machine, cluster, selection.Settings(machine), outdated), nil
}

// policies returns the MachineDrainPolicies of a namespace. They must not be modified.
func (q *Requester) policies(ctx context.Context, namespace string) (machinedrain.Policies, error) {
	list := &v1alpha1.MachineDrainPolicyList{}
	err := q.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	return machinedrain.ParsePolicies(list.Items), errors.Wrapf(err, "listing the MachineDrainPolicies of namespace %s", namespace)
}

// PolicyFor is Policies.For. unread says why the policy cannot be decoded that may select the Machine, nil if the selection has none.
func (q *Requester) PolicyFor(
	machine *clusterv1.Machine, cluster *clusterv1.Cluster, policies machinedrain.Policies,
) (selection machinedrain.PolicySelection, unread *setaside.Error) {
	byName := map[string]*setaside.Error{}
	for _, each := range q.Unread.List("MachineDrainPolicy", machine.Namespace) {
		byName[each.Object.Name] = each
	}
	selection = policies.For(machine, cluster.Labels, slices.Collect(maps.Keys(byName))...)
	return selection, byName[selection.Unread]
}

// continuation is whether the drain of a Machine continues: see Continue.
type continuation struct {
	machine     types.UID // empty while the drain is suspended
	suspendedAt time.Time // when Suspend was called, zero after Continue
}

// Continue ends the suspension of a Machine's drain, see awaitsUpdate, until Suspend is called or the manager restarts. The machine
// controller calls it when it has found that the NodeMaintenance in the cache has the drain rules and the settings that it wants, or that
// it does not change the NodeMaintenance any more. asOf is when that reconciliation began: if Suspend was called since, the drain stays
// suspended. Continue reports whether the drain was suspended and continues: then it must be reconciled again.
func (q *Requester) Continue(machine *clusterv1.Machine, asOf time.Time) (resumes bool) {
	key, continued := client.ObjectKeyFromObject(machine), continuation{machine: machine.UID}
	loaded, found := q.continued.LoadOrStore(key, continued)
	before, _ := loaded.(continuation)
	return !found || before != continued && !before.suspendedAt.After(asOf) && q.continued.CompareAndSwap(key, before, continued)
}

// Suspend ends what Continue has recorded: the Machine is paused or held, or its NodeMaintenance in the cache may be outdated again.
func (q *Requester) Suspend(machine types.NamespacedName, now time.Time) {
	q.continued.Store(machine, continuation{suspendedAt: now})
}

// Forget deletes what Continue and Suspend have recorded of a Machine that no longer exists.
func (q *Requester) Forget(machine types.NamespacedName) { q.continued.Delete(machine) }

// Continues reports whether Continue was called for a Machine, and Suspend was not since.
func (q *Requester) Continues(machine *clusterv1.Machine) bool {
	continued, found := q.continued.Load(client.ObjectKeyFromObject(machine))
	return found && continued == continuation{machine: machine.UID}
}

// awaitsUpdate reports whether a NodeMaintenance of this management cluster drains the Node of a Machine, and may have the drain rules and
// the settings of the time before a pause, or before this manager has started: see Continue. The machine controller does not update one
// that names the Machine but selects another Node.
func (q *Requester) awaitsUpdate(m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) bool {
	return machine != nil && m.Drains() && machinedrain.IsOfManagementCluster(m, q.ManagementCluster) && !machinedrain.SelectsAnotherNode(m, machine) &&
		!q.Continues(machine)
}

// IsSuspended is machinedrain.IsSuspended, and also true while the drain awaits an update, see awaitsUpdate. It reads the policy of the
// Machine only if that has hooks of other owners.
func (q *Requester) IsSuspended(ctx context.Context, m *v1alpha1.NodeMaintenance, machine *clusterv1.Machine) (bool, error) {
	var holding []machinedrain.Hook
	if machine != nil && len(machinedrain.HoldingHooks(machine, nil)) > 0 {
		policy, err := q.policyOf(ctx, machine)
		if err != nil {
			return false, err
		}
		holding = machinedrain.HoldingHooks(machine, policy)
	}
	return machinedrain.IsSuspended(m, machine, holding, q.ManagementCluster) || q.awaitsUpdate(m, machine), nil
}

// policyOf returns the policy whose settings apply to a Machine, nil if no policy selects it, if it cannot be decoded, or if the Cluster
// does not exist.
func (q *Requester) policyOf(ctx context.Context, machine *clusterv1.Machine) (*v1alpha1.MachineDrainPolicy, error) {
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.ClusterName}
	if err := q.Client.Get(ctx, key, cluster, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrapf(client.IgnoreNotFound(err), "getting Cluster %s", klog.KRef(machine.Namespace, machine.Spec.ClusterName))
	}
	policies, err := q.policies(ctx, machine.Namespace)
	selection, _ := q.PolicyFor(machine, cluster, policies)
	return selection.Settings(machine), err
}

// PolicyOf returns a function that returns the policy whose settings apply to a Machine of the Cluster, nil if no policy selects it.
// isUnread means that it is not known, because a policy that cannot be decoded may select the Machine. cluster is nil if it could not be
// read: the function knows nothing then. It lists the policies in its first call.
func (q *Requester) PolicyOf(ctx context.Context,
	cluster *clusterv1.Cluster,
) func(*clusterv1.Machine) (policy *v1alpha1.MachineDrainPolicy, isUnread bool, _ error) {
	if cluster == nil {
		return func(*clusterv1.Machine) (*v1alpha1.MachineDrainPolicy, bool, error) { return nil, false, nil }
	}
	list := sync.OnceValues(func() (machinedrain.Policies, error) { return q.policies(ctx, cluster.Namespace) })
	return func(machine *clusterv1.Machine) (*v1alpha1.MachineDrainPolicy, bool, error) {
		policies, err := list()
		if err != nil {
			return nil, false, err
		}
		selection, unread := q.PolicyFor(machine, cluster, policies)
		return selection.Settings(machine), unread != nil, nil
	}
}

// outdatedStage returns the stage that the rollout of a Machine's MachineDeployment requests, empty if it requests none.
func (q *Requester) outdatedStage(
	ctx context.Context, cluster *clusterv1.Cluster, machine *clusterv1.Machine, policies machinedrain.Policies, now time.Time,
) (v1alpha1.NodeMaintenanceStage, error) {
	name := machine.Labels[clusterv1.MachineDeploymentNameLabel]
	if name == "" {
		return "", nil
	}
	deployment := &clusterv1.MachineDeployment{}
	if err := q.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: name}, deployment); err != nil {
		return "", errors.Wrapf(client.IgnoreNotFound(err), "getting MachineDeployment %s", klog.KRef(machine.Namespace, name))
	}
	machines, err := q.MachinesOf(ctx, cluster, deployment)
	if err != nil {
		return "", err
	}
	policyOf := func(machine *clusterv1.Machine) *v1alpha1.MachineDrainPolicy {
		return policies.For(machine, cluster.Labels).Settings(machine)
	}
	return rollout.Decide(rollout.Observe(cluster, deployment, machines, policyOf), now).Stages[machine.Name], nil
}

// MachinesOf returns the Machines of a MachineDeployment, to be read only.
func (q *Requester) MachinesOf(ctx context.Context, cluster *clusterv1.Cluster, deployment *clusterv1.MachineDeployment) ([]clusterv1.Machine, error) {
	all := &clusterv1.MachineList{}
	labels := client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name, clusterv1.MachineDeploymentNameLabel: deployment.Name}
	err := q.Client.List(ctx, all, client.InNamespace(deployment.Namespace), labels, client.UnsafeDisableDeepCopy)
	return all.Items, errors.Wrapf(err, "listing the Machines of MachineDeployment %s", klog.KObj(deployment))
}
