package workload

import (
	"context"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/answers"
	"github.com/capnm/cluster-api-node-maintenance/drain/nodeselection"
)

// evacuationsByNode is the index of Evacuations by the Node of their Pod, in the caches of workload clusters.
const evacuationsByNode = "node"

// maintenancesByNode is the index of NodeMaintenances by Node, see nodeselection.Keys.
const maintenancesByNode = "node"

// indexes are the indexes of the caches of workload clusters. The index option of the ClusterCache requires that the CRD exists before the
// first connection.
var indexes = []clustercache.Watcher{
	index("workloadcluster-EvacuationsByNode", &v1alpha1.Evacuation{}, evacuationsByNode, func(object client.Object) []string {
		node, recorded := object.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]
		if !recorded {
			return nil
		}
		return []string{node}
	}),
	index("workloadcluster-NodeMaintenancesByNode", &v1alpha1.NodeMaintenance{}, maintenancesByNode, func(object client.Object) []string {
		m, is := object.(*v1alpha1.NodeMaintenance)
		if !is {
			return nil
		}
		return nodeselection.Keys(m)
	}),
}

// index returns a watcher that adds an index to the cache of a connection.
func index(name string, object client.Object, field string, values client.IndexerFunc) watcher {
	return watcher{name, object, func(cache ctrlcache.Cache) error {
		return errors.Wrapf(cache.IndexField(context.Background(), object, field, values), "adding the index %s", name)
	}}
}

// manyNodes is the number of Nodes above which one list of all NodeMaintenances costs less than one for each Node.
const manyNodes = 16

// MaintenancesOf returns all NodeMaintenances that select or mention one of these Nodes, and possibly others. They are shared with the
// cache and must not be modified. It uses an index because it runs at each event of each Pod, and hundreds of Nodes may each have a
// NodeMaintenance.
func MaintenancesOf(ctx context.Context, cached client.Reader, nodes ...string) ([]v1alpha1.NodeMaintenance, error) {
	if len(nodes) > manyNodes {
		all := &v1alpha1.NodeMaintenanceList{}
		err := cached.List(ctx, all, client.UnsafeDisableDeepCopy)
		return all.Items, errors.Wrap(err, "listing NodeMaintenances")
	}
	var maintenances []v1alpha1.NodeMaintenance
	seen := sets.New[string]()
	for _, key := range append([]string{nodeselection.AnyNode}, nodes...) {
		list := &v1alpha1.NodeMaintenanceList{}
		if err := cached.List(ctx, list, client.MatchingFields{maintenancesByNode: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, errors.Wrapf(err, "listing the NodeMaintenances of Node %s", key)
		}
		for i := range list.Items {
			if m := &list.Items[i]; !seen.Has(m.Name) {
				seen.Insert(m.Name)
				maintenances = append(maintenances, *m)
			}
		}
	}
	return maintenances, nil
}

// NodeNamed returns a Node, to be read only, or nil if it does not exist.
func NodeNamed(ctx context.Context, reader client.Reader, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	switch err := reader.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy); {
	case answers.DoesNotExist(err):
		return nil, nil //nolint:nilnil // nil is a valid result
	case err != nil:
		return nil, errors.Wrapf(err, "getting Node %s", name)
	default:
		return node, nil
	}
}
