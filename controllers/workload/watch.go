package workload

import (
	"context"
	"slices"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Watches returns the watches of a controller in a workload cluster. The ClusterCache stops watches when the connection ends; they are
// added to the next connection.
type Watches func(cluster types.NamespacedName) []clustercache.Watcher

// Watch returns a watch of the objects of a kind. enqueue maps their events to requests, and matters selects the events (default: all).
// Names must be unique in a connection, because they identify watches that already exist.
func Watch[T client.Object, R comparable](name string, controller clustercache.SourceWatcher[R], kind T, enqueue handler.TypedEventHandler[T, R], matters ...predicate.TypedPredicate[T]) clustercache.Watcher {
	return clustercache.NewWatcher(clustercache.TypedWatcherOptions[T, R]{Name: name, Watcher: controller, Kind: kind, EventHandler: enqueue, Predicates: matters})
}

// AddWatches adds the missing watches to a connection, after the indexes that their controllers use.
func (c *Clusters) AddWatches(ctx context.Context, cluster types.NamespacedName, all []Watches) error {
	watchers := slices.Clone(indexes)
	for _, watches := range all {
		watchers = append(watchers, watches(cluster)...)
	}
	for _, watcher := range watchers {
		if err := c.cache.Watch(ctx, cluster, watcher); err != nil {
			return errors.Wrapf(err, "adding %s to workload Cluster %s", watcher.Name(), cluster)
		}
	}
	return nil
}
