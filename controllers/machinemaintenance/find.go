// Package machinemaintenance finds, creates, updates and completes the NodeMaintenances of Machines, and decides which are
// suspended. A Machine has at most one, whatever requested it: a deletion, a rollout or the stage annotation.
package machinemaintenance

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/controllers/workload"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// Find looks up the Node of a Machine, and the Machine's NodeMaintenance. The Node is nil if the Machine has none, or if it does not exist.
// If the workload cluster does not have the CRD, no NodeMaintenance is found.
func Find(ctx context.Context, remote client.Reader, cluster types.NamespacedName, machine *clusterv1.Machine) (machinedrain.Found, *corev1.Node, error) {
	if !machine.Status.NodeRef.IsDefined() {
		return machinedrain.Found{}, nil, nil
	}
	node := &corev1.Node{}
	switch err := remote.Get(ctx, types.NamespacedName{Name: machine.Status.NodeRef.Name}, node); {
	case answers.DoesNotExist(err):
		return machinedrain.Found{}, nil, nil
	case err != nil:
		return machinedrain.Found{}, nil, errors.Wrapf(err, "getting Node %s", machine.Status.NodeRef.Name)
	}
	id := machinedrain.Identity{Cluster: cluster, Machine: machine, Node: node}
	found, err := find(ctx, remote, id)
	if meta.IsNoMatchError(err) {
		return machinedrain.Found{Name: id.Names()[0]}, node, nil
	}
	return found, node, err
}

// FindExisting is like Find, but reads the Node only if there is a NodeMaintenance for a Node of that name: Nodes are not cached in an idle
// workload cluster.
func FindExisting(ctx context.Context, remote client.Reader, cluster types.NamespacedName,
	machine *clusterv1.Machine,
) (machinedrain.Found, *corev1.Node, error) {
	maintenances, err := workload.MaintenancesOf(ctx, remote, machine.Status.NodeRef.Name)
	if err == nil && len(maintenances) == 0 {
		return machinedrain.Found{}, nil, nil
	}
	return Find(ctx, remote, cluster, machine) // also while the connection has no index yet
}

func find(ctx context.Context, remote client.Reader, id machinedrain.Identity) (machinedrain.Found, error) {
	named := map[string]*v1alpha1.NodeMaintenance{}
	for _, name := range id.Names() {
		m := &v1alpha1.NodeMaintenance{}
		switch err := remote.Get(ctx, types.NamespacedName{Name: name}, m); {
		case answers.IgnoreDoesNotExist(err) != nil:
			return machinedrain.Found{}, errors.Wrapf(err, "getting NodeMaintenance %s", name)
		case err == nil:
			named[name] = m
		}
	}
	found := id.Find(named)
	if found.Maintenance != nil || len(found.Taken) == 0 {
		return found, nil
	}
	all := &v1alpha1.NodeMaintenanceList{}
	if err := remote.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return machinedrain.Found{}, errors.Wrap(err, "listing NodeMaintenances")
	}
	return id.FindAmong(all.Items, found), nil
}

// List returns, by Machine, the matching NodeMaintenances of some Machines of a Cluster. It reads them from the cache; they must not be
// modified. It returns none if the workload cluster does not have the CRD.
func (q *Requester) List(ctx context.Context, remote client.Client, cluster types.NamespacedName, of []clusterv1.Machine,
	matches func(*v1alpha1.NodeMaintenance) bool,
) (map[types.NamespacedName]*v1alpha1.NodeMaintenance, error) {
	if _, err := remote.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("NodeMaintenance").GroupKind(), v1alpha1.GroupVersion.Version); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, nil
		}
		return nil, errors.Wrap(err, "looking up the CRD of NodeMaintenances")
	}
	list := &v1alpha1.NodeMaintenanceList{}
	if err := remote.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, errors.Wrap(err, "listing NodeMaintenances")
	}
	named := map[types.NamespacedName][]*v1alpha1.NodeMaintenance{}
	for i := range list.Items {
		m := &list.Items[i]
		if owner, ours := machinedrain.OwnerMachine(m, q.ManagementCluster, cluster); ours && matches(m) {
			named[owner] = append(named[owner], m)
		}
	}
	present := map[types.NamespacedName]*v1alpha1.NodeMaintenance{}
	for i := range of {
		key := client.ObjectKeyFromObject(&of[i])
		for _, m := range named[key] {
			node, name := &corev1.Node{}, machinedrain.NodeName(&of[i], m)
			if name == "" {
				continue
			}
			if err := remote.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy); answers.IgnoreDoesNotExist(err) != nil {
				return nil, errors.Wrapf(err, "getting Node %s", name)
			}
			if id := (machinedrain.Identity{Cluster: cluster, Machine: &of[i], Node: node}); present[key] == nil && id.Is(m) {
				present[key] = m
			}
		}
	}
	return present, nil
}
