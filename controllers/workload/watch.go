package workload

import (
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
