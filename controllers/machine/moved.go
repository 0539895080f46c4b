package machine

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// revertMovedDrain completes and deletes the NodeMaintenance of a running Machine that was being deleted when clusterctl move brought it here:
// clusterctl move does not preserve deletions. Without a connection it does nothing; the next connection, and each event of the
// NodeMaintenance, triggers another reconciliation.
func (r *Reconciler) revertMovedDrain(ctx context.Context, machine *clusterv1.Machine, cluster *clusterv1.Cluster) error {
	if !machine.Status.NodeRef.IsDefined() {
		return nil
	}
	remoteClient, err := r.Clusters.Client(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	if err := remoteClient.Get(ctx, types.NamespacedName{Name: machine.Status.NodeRef.Name}, node); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "getting Node %s", machine.Status.NodeRef.Name)
	}
	found, err := FindMaintenance(ctx, remoteClient, machinedrain.Identity{Cluster: client.ObjectKeyFromObject(cluster), Machine: machine, Node: node})
	if err != nil {
		if meta.IsNoMatchError(err) { // the bundle is not installed yet
			return nil
		}
		return err
	}
	left := found.Maintenance
	if left == nil || !machinedrain.OrphanedByMove(left, machine, r.ManagementCluster) {
		return nil
	}
	changed := left.DeepCopy()
	machinedrain.RevertMoved(changed, r.ManagementCluster)
	if err := remoteClient.Patch(ctx, changed, client.MergeFromWithOptions(left, client.MergeFromWithOptimisticLock{})); err != nil {
		return errors.Wrapf(client.IgnoreNotFound(err), "completing NodeMaintenance %s, whose Machine isn't being deleted any more", left.Name)
	}
	ctrl.LoggerFrom(ctx).Info("The Machine is no longer being deleted after a move from another management cluster, completing its NodeMaintenance", "NodeMaintenance", klog.KRef("", left.Name))
	err = remoteClient.Delete(ctx, changed, client.Preconditions{UID: &changed.UID})
	return errors.Wrapf(client.IgnoreNotFound(err), "deleting NodeMaintenance %s, whose Machine isn't being deleted any more", left.Name)
}
