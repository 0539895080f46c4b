package machine

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/machinedrain"
)

// FindMaintenance looks up the NodeMaintenance of a Machine's Node in its workload cluster.
func FindMaintenance(ctx context.Context, remote client.Reader, id machinedrain.Identity) (machinedrain.Found, error) {
	named := map[string]*v1alpha1.NodeMaintenance{}
	for _, name := range id.Names() {
		m := &v1alpha1.NodeMaintenance{}
		switch err := remote.Get(ctx, types.NamespacedName{Name: name}, m); {
		case client.IgnoreNotFound(err) != nil:
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
