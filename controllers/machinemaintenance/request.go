// Package machinemaintenance manages the NodeMaintenances of Machines that are not being deleted: those that a rollout announces, and those that the
// stage annotation of a Machine requests. When the Machine is deleted, the machine controller takes over the same NodeMaintenance.
package machinemaintenance

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/machine"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// Requester creates, updates and withdraws NodeMaintenances in workload clusters.
type Requester struct {
	Client            client.Client
	ManagementCluster string
}

// Request is the desired NodeMaintenance of a Machine.
type Request struct {
	Cluster *clusterv1.Cluster
	Machine *clusterv1.Machine
	Policy  *v1alpha1.MachineDrainPolicy
	Stage   v1alpha1.NodeMaintenanceStage
	For     string // v1alpha1.RequestedForRollout or RequestedForStage
}

// List returns, by Machine, the NodeMaintenances of some Machines of a Cluster that were requested for the same purpose. It reads them
// from the cache; they must not be modified. It returns none if the workload cluster does not have the CRD.
func (k *Requester) List(ctx context.Context, remote client.Client, cluster types.NamespacedName, of []clusterv1.Machine, requestedFor string) (map[types.NamespacedName]*v1alpha1.NodeMaintenance, error) {
	if _, err := remote.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("NodeMaintenance").GroupKind(), v1alpha1.GroupVersion.Version); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, nil
		}
		return nil, errors.Wrap(err, "looking for the CRD of NodeMaintenances")
	}
	list := &v1alpha1.NodeMaintenanceList{}
	if err := remote.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrap(err, "listing NodeMaintenances")
	}
	named := map[types.NamespacedName][]*v1alpha1.NodeMaintenance{}
	for i := range list.Items {
		m := &list.Items[i]
		owner, ours := k.Serves(m, cluster)
		if ours && m.DeletionTimestamp.IsZero() && m.Annotations[v1alpha1.RequestedForAnnotation] == requestedFor {
			named[owner] = append(named[owner], m)
		}
	}
	present := map[types.NamespacedName]*v1alpha1.NodeMaintenance{}
	for i := range of {
		key := client.ObjectKeyFromObject(&of[i])
		if len(named[key]) == 0 {
			continue
		}
		node := &corev1.Node{}
		if err := remote.Get(ctx, types.NamespacedName{Name: of[i].Status.NodeRef.Name}, node, client.UnsafeDisableDeepCopy); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return nil, errors.Wrapf(err, "getting Node %s", of[i].Status.NodeRef.Name)
		}
		id := machinedrain.Identity{Cluster: cluster, Machine: &of[i], Node: node}
		if at := slices.IndexFunc(named[key], id.Is); at >= 0 {
			present[key] = named[key][at]
		}
	}
	return present, nil
}

// Serves returns the Machine of the Cluster that a NodeMaintenance serves. ours is false if it serves none.
func (k *Requester) Serves(m *v1alpha1.NodeMaintenance, cluster types.NamespacedName) (owner types.NamespacedName, ours bool) {
	return machinedrain.OwnerMachine(m, k.ManagementCluster, cluster)
}

// Get looks up the NodeMaintenance of a Machine, and its Node. The Node is nil if it does not exist. If the workload cluster does not have
// the CRD, no NodeMaintenance is found.
func (k *Requester) Get(ctx context.Context, remote client.Client, cluster types.NamespacedName, m *clusterv1.Machine) (machinedrain.Found, *corev1.Node, error) {
	node := &corev1.Node{}
	if !m.Status.NodeRef.IsDefined() {
		return machinedrain.Found{}, nil, nil
	}
	if err := remote.Get(ctx, types.NamespacedName{Name: m.Status.NodeRef.Name}, node); err != nil {
		return machinedrain.Found{}, nil, errors.Wrapf(client.IgnoreNotFound(err), "getting Node %s", m.Status.NodeRef.Name)
	}
	id := machinedrain.Identity{Cluster: cluster, Machine: m, Node: node}
	found, err := machine.FindMaintenance(ctx, remote, id)
	if meta.IsNoMatchError(err) {
		return machinedrain.Found{Name: id.Names()[0]}, node, nil
	}
	return found, node, err
}

// Ensure creates the desired NodeMaintenance of a Machine, or updates it; stages only move forward. It returns the resulting NodeMaintenance.
// problem is not nil if invalid MachineDrainRules block a drain, or if other authors have taken all its names.
func (k *Requester) Ensure(ctx context.Context, remote client.Client, w Request) (kept *v1alpha1.NodeMaintenance, problem *Problem, err error) {
	cluster := client.ObjectKeyFromObject(w.Cluster)
	found, node, err := k.Get(ctx, remote, cluster, w.Machine)
	if err != nil || node == nil {
		return nil, nil, err
	}
	present := found.Maintenance
	if present != nil && w.For == v1alpha1.RequestedForRollout && present.Annotations[v1alpha1.RequestedForAnnotation] != w.For {
		return present, nil, nil // requested for another purpose; its deletion triggers a reconciliation
	}
	if found.Name == "" {
		return nil, &Problem{Reason: v1alpha1.ReasonMaintenanceNameTaken, Message: found.TakenMessage()}, nil
	}
	compiled, err := machine.CompileRules(ctx, k.Client, w.Cluster, w.Machine, machinedrain.DaemonSetPods(w.Policy, present))
	if err != nil {
		return nil, nil, err
	}
	if len(compiled.Problems) > 0 && w.Stage == v1alpha1.StageDrain {
		return present, &Problem{Reason: v1alpha1.ReasonMachineDraining, Message: "Waiting for a MachineDrainRule to be mended: " + compiled.Problems[0].String()}, nil
	}
	desired := machinedrain.Maintenance(machinedrain.Request{
		ManagementCluster: k.ManagementCluster, Cluster: cluster, Machine: w.Machine, Node: node, Name: found.Name,
		Policy: w.Policy, Rules: compiled.Rules, Stage: w.Stage, For: w.For,
	})
	if present == nil {
		ctrl.LoggerFrom(ctx).Info("Requesting the maintenance of the Node", "Node", node.Name, "stage", w.Stage, "for", w.For, "namesTaken", found.Taken)
		err := remote.Create(ctx, desired)
		return desired, nil, errors.Wrapf(ignoreExists(err), "creating NodeMaintenance %s", desired.Name)
	}
	changed := present.DeepCopy()
	if !present.DeletionTimestamp.IsZero() || !machinedrain.Update(changed, desired) {
		return present, nil, nil
	}
	err = remote.Patch(ctx, changed, client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{}))
	return changed, nil, errors.Wrapf(client.IgnoreNotFound(err), "updating NodeMaintenance %s", desired.Name)
}

// Problem says why a NodeMaintenance cannot be created or updated, with the reason and message of the Machine's condition.
type Problem struct{ Reason, Message string }

// Withdraw sets a NodeMaintenance to stage Complete, so that the recorded state of the Node is restored, and deletes it. It fails with a
// conflict if the NodeMaintenance has changed in the meantime: the machine controller may have taken it over.
func (k *Requester) Withdraw(ctx context.Context, remote client.Client, present *v1alpha1.NodeMaintenance) error {
	ctrl.LoggerFrom(ctx).Info("Withdrawing the NodeMaintenance", "NodeMaintenance", present.Name, "stage", present.Spec.Stage)
	completed := present.DeepCopy()
	completed.Spec.Stage = v1alpha1.StageComplete
	if err := remote.Patch(ctx, completed, client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{})); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "completing NodeMaintenance %s", present.Name)
	}
	err := remote.Delete(ctx, completed, client.Preconditions{UID: &present.UID})
	return errors.Wrapf(client.IgnoreNotFound(err), "deleting NodeMaintenance %s", present.Name)
}

// ignoreExists ignores that the NodeMaintenance was created in the meantime: its event triggers another reconciliation.
func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
