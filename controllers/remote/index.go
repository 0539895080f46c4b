package remote

import (
	"context"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capnm/cluster-api-node-maintenance/api/v1alpha1"
	"github.com/capnm/cluster-api-node-maintenance/drain/selection"
)

// EvacuationsByNode is the index of Evacuations in the caches of workload clusters: the Node that a Pod was found on.
const EvacuationsByNode = "node"

// maintenancesByNode is the index of NodeMaintenances, see selection.Keys.
const maintenancesByNode = "node"

// indexes are those of the caches of workload clusters.
var indexes = []clustercache.Watcher{
	index{name: "workloadcluster-EvacuationsByNode", object: &v1alpha1.Evacuation{}, field: EvacuationsByNode, values: func(object client.Object) []string {
		node, noted := object.GetAnnotations()[v1alpha1.EvacuationNodeAnnotation]
		if !noted {
			return nil
		}
		return []string{node}
	}},
	index{name: "workloadcluster-NodeMaintenancesByNode", object: &v1alpha1.NodeMaintenance{}, field: maintenancesByNode, values: func(object client.Object) []string {
		m, is := object.(*v1alpha1.NodeMaintenance)
		if !is {
			return nil
		}
		return selection.Keys(m)
	}},
}

// index is added to a connection's cache. The ClusterCache's own index option would need the CRD to be there before the first
// connection.
type index struct {
	name   string
	object client.Object
	field  string
	values client.IndexerFunc
}

// Name implements clustercache.Watcher.
func (i index) Name() string { return i.name }

// Object implements clustercache.Watcher.
func (i index) Object() client.Object { return i.object }

// Watch implements clustercache.Watcher.
func (i index) Watch(cache ctrlcache.Cache) error {
	return errors.Wrapf(cache.IndexField(context.Background(), i.object, i.field, i.values), "adding the index %s", i.name)
}

// manyNodes is from where on one look at all maintenances costs less than one for each Node.
const manyNodes = 16

// MaintenancesOf returns the NodeMaintenances that may have to do with one of these Nodes: all of those that select or mention it, and
// perhaps others. They come from the cache as they are, to be read only. In a burst there is one for each of hundreds of Nodes, and
// this is asked at each event of each of their Pods.
func MaintenancesOf(ctx context.Context, cached client.Reader, nodes ...string) ([]v1alpha1.NodeMaintenance, error) {
	if len(nodes) > manyNodes {
		all := &v1alpha1.NodeMaintenanceList{}
		err := cached.List(ctx, all, client.UnsafeDisableDeepCopy)
		return all.Items, errors.Wrap(err, "listing NodeMaintenances")
	}
	var maintenances []v1alpha1.NodeMaintenance
	seen := sets.New[string]()
	for _, key := range append([]string{selection.AnyNode}, nodes...) {
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
